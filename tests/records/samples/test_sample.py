"""Each sampled token is trained exactly once, whatever the shape of the tree (I3)."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.records.encoding.tokens import unpack_ids, unpack_logprobs
from holdfast.records.history import History, stream_of
from holdfast.records.samples.sample import Sample, placeholder, samples_of
from holdfast.records.step import Generated, VersionSpan
from holdfast.records.trajectory import Status
from support.records import finished, generated, started


def samples(history: History) -> list[Sample]:
    return samples_of(history, task="a", group="run/a", sample=0)


@st.composite
def trees(draw: st.DrawFn) -> list[Generated]:
    """Generations in the root scope and in parallel branches, each on any earlier one or on none.

    Every sampled token has an id of its own, so that it can be found again.
    """
    steps: list[Generated] = []
    lengths: dict[str, int] = {"": 0}
    fresh = 1_000
    ordinals: dict[str, int] = {}
    for number in range(draw(st.integers(1, 10))):
        scope = draw(st.sampled_from(["", "3.0.", "3.1.", "3.1.2.0."]))
        ordinal = ordinals.get(scope, 0) + (draw(st.integers(0, 2)))
        ordinal += scope == "" and ordinal == 3  # The root's step 3 is where branches open.
        path = f"{scope}{ordinal}"
        ordinals[scope] = ordinal + 1
        earlier = [step.path for step in steps if key(step.path) < key(path)]
        base = draw(st.sampled_from(["", *earlier]))
        whole = draw(st.booleans())
        keep = lengths[base] if whole else draw(st.integers(0, lengths[base]))
        delta = draw(st.lists(st.integers(0, 99), max_size=3))
        size = draw(st.integers(1, 4))
        cut = draw(st.integers(0, size))
        ids = list(range(fresh, fresh + size))
        fresh += size
        edges = [0, cut, size] if 0 < cut < size else [0, size]
        steps.append(
            generated(
                path,
                base=base,
                keep=keep,
                delta=delta,
                ids=ids,
                logprobs=[-token / 8 for token in ids],
                versions=tuple(
                    VersionSpan(f"v{number}-{part}", start, end)
                    for part, (start, end) in enumerate(pairwise(edges))
                ),
            )
        )
        lengths[path] = keep + len(delta) + size
    return steps


def key(path: str) -> tuple[int, ...]:
    return tuple(map(int, path.split(".")))


@given(trees())
def test_each_sampled_token_is_trained_exactly_once(steps: list[Generated]) -> None:
    history = History([started(), *steps, finished()])
    trained = [
        token
        for sample in samples(history)
        for token, mask in zip(sample.token_ids, sample.loss_mask, strict=True)
        if mask
    ]
    assert sorted(trained) == sorted(token for step in steps for token in unpack_ids(step.ids))


@given(trees())
def test_what_is_trained_has_the_logprob_and_version_it_was_sampled_with(
    steps: list[Generated],
) -> None:
    sampled = {}
    for step in steps:
        for at, (token, logprob) in enumerate(
            zip(unpack_ids(step.ids), unpack_logprobs(step.logprobs), strict=True)
        ):
            (version,) = [
                version.version for version in step.versions if version.start <= at < version.end
            ]
            sampled[token] = (logprob, version)
    for sample in samples(History([started(), *steps, finished()])):
        assert len(sample.token_ids) == len(sample.loss_mask) == len(sample.logprobs)
        for at, token in enumerate(sample.token_ids):
            spans = [
                version_span.version
                for version_span in sample.version_spans
                if version_span.start <= at < version_span.end
            ]
            if sample.loss_mask[at]:
                assert (sample.logprobs[at], *spans) == sampled[token]
            assert len(spans) <= 1


@given(trees())
def test_every_generation_is_the_stream_of_some_sample(steps: list[Generated]) -> None:
    """A trained token was sampled behind exactly the tokens that stand before it."""
    history = History([started(), *steps, finished()])
    results = samples(history)
    for step in steps:
        stream = stream_of(history, step.path).tolist()
        assert any(sample.token_ids[: len(stream)] == stream for sample in results)
        first = unpack_ids(step.ids)[0]
        (trainer,) = [
            sample
            for sample in results
            if first in sample.token_ids and sample.loss_mask[sample.token_ids.index(first)]
        ]
        assert trainer.token_ids[: len(stream)] == stream


@given(trees(), st.randoms(use_true_random=False))
def test_samples_do_not_depend_on_the_order_of_commits(steps: list[Generated], random) -> None:  # type: ignore[no-untyped-def]
    shuffled = list(steps)
    random.shuffle(shuffled)
    assert samples(History([started(), *shuffled, finished()])) == samples(
        History([started(), *steps, finished()])
    )


def test_turns_that_follow_each_other_are_one_sample() -> None:
    first = generated("0", delta=[1, 2], ids=[3])
    second = generated("1", base="0", keep=3, delta=[4], ids=[5, 6])
    (sample,) = samples(History([first, second, finished()]))
    assert sample.token_ids == [1, 2, 3, 4, 5, 6]
    assert sample.loss_mask == [0, 0, 1, 0, 1, 1]
    assert sample.logprobs == [0.0, 0.0, -0.5, 0.0, -0.5, -0.5]
    assert [(version_span.start, version_span.end) for version_span in sample.version_spans] == [
        (2, 3),
        (4, 6),
    ]


def test_a_broken_prefix_is_a_sample_of_its_own_that_trains_nothing_twice() -> None:
    first = generated("0", delta=[1], ids=[2, 3])
    second = generated("1", base="0", keep=2, delta=[9], ids=[4], prefix_break="rewritten")
    single, two = samples(History([first, second, finished()]))
    assert (single.token_ids, single.loss_mask) == ([1, 2, 3], [0, 1, 1])
    assert (two.token_ids, two.loss_mask) == ([1, 2, 9, 4], [0, 0, 0, 1])
    assert [single.branch, two.branch] == [0, 1]


@pytest.mark.parametrize("status", [Status.FAILED, Status.ABORTED])
def test_what_is_no_outcome_is_never_trained(status: Status) -> None:
    assert samples(History([started(), generated("0"), finished(status)])) == []
    assert samples(History([started(), generated("0")])) == []


def test_a_truncated_trajectory_is_kept() -> None:
    (sample,) = samples(History([generated("0"), finished(Status.TRUNCATED)]))
    assert (sample.status, sample.reward) == ("TRUNCATED", 1.0)


def test_a_placeholder_keeps_the_shape_and_trains_nothing() -> None:
    sample = placeholder(task="a", group="run/a", sample=3)
    assert (sample.token_ids, sample.loss_mask, sample.logprobs) == ([0, 0], [0], [0.0])
    assert (sample.reward, sample.remove_sample, sample.status) == (0.0, True, "ABORTED")


@pytest.mark.parametrize(
    ("logprob", "message"),
    [
        (float("nan"), "not finite"),
        (float("-inf"), "not finite"),
        (0.5, r"positive \(0\.5\)"),
        (-1e300, "does not fit float32"),
    ],
)
def test_a_logprob_that_is_none_makes_no_sample(logprob: float, message: str) -> None:
    with pytest.raises(ValueError, match=rf"task 'a', sample 0: a logprob .*{message}"):
        Sample("a", "a", 0, 0, "COMPLETED", "", [1, 2], [0, 1], [0.0, logprob], [], 1.0)
