"""Whatever happens to a completion on its way, its tokens, logprobs and versions stay together."""

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.policy.client.completion_builder import CompletionBuilder
from holdfast.policy.dialects.dialect import InvalidAnswer, Piece
from holdfast.policy.policy import Draft
from holdfast.records.encoding.tokens import unpack_ids, unpack_logprobs
from holdfast.records.step import VersionSource, VersionSpan
from support.policy.answers import logprobs_of, request
from support.policy.drafts import draft_of

ASSUMED, ENGINE, UNKNOWN = VersionSource.ASSUMED, VersionSource.ENGINE, VersionSource.UNKNOWN


def piece(
    *ids: int, finish: str | None = None, versions: list[tuple[str, int, int]] | None = None
) -> Piece:
    spans = None if versions is None else tuple(VersionSpan(*version) for version in versions)
    return Piece(ids=list(ids), logprobs=logprobs_of(ids), finish_reason=finish, versions=spans)


def test_what_the_engine_tells_replaces_what_was_assumed_of_the_same_try_only() -> None:
    draft = draft_of([1, 2], VersionSpan("v1", 0, 2, ASSUMED))
    sampled = CompletionBuilder(request(draft=draft))
    sampled.begin(array("i"), version="v1")
    sampled.take(piece(3, 4), model="m")
    assert sampled.take_unsaved(hold=0) is not None  # What is durable is attributed already.
    sampled.take(piece(5, finish="stop", versions=[("v1", 0, 1), ("v2", 1, 3)]), model="m")
    completion = sampled.completion(model="m", tries=1, seconds=0)
    assert completion.versions == (
        VersionSpan("v1", 0, 2, ASSUMED),
        VersionSpan("v1", 2, 3, ENGINE),
        VersionSpan("v2", 3, 5, ENGINE),
    )


def test_a_version_that_is_acknowledged_on_the_way_is_that_of_the_next_token() -> None:
    sampled = CompletionBuilder(request())
    sampled.begin(array("i"), version="v1")
    sampled.take(piece(1, 2), model="m")
    sampled.assume("v2")
    sampled.take(piece(3), model="m")
    sampled.assume(None)
    sampled.take(piece(4, finish="stop"), model="m")
    assert sampled.completion(model="m", tries=1, seconds=0).versions == (
        VersionSpan("v1", 0, 2, ASSUMED),
        VersionSpan("v2", 2, 3, ASSUMED),
        VersionSpan("", 3, 4, UNKNOWN),
    )


def test_what_is_refused_changes_nothing() -> None:
    sampled = CompletionBuilder(request())
    sampled.begin(array("i"), version=None)
    sampled.take(piece(1), model="m")
    bad = piece(2, 3, finish="stop", versions=[("v", 0, 9)])
    with pytest.raises(InvalidAnswer, match="cover 9 of 3"):
        sampled.take(bad, model="m")
    assert (sampled.ids.tolist(), sampled.finish_reason, sampled.spans) == ([1], None, [])


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(1, 3)),
        st.tuples(st.just("tell"), st.integers(1, 3)),
        st.tuples(st.just("assume"), st.integers(0, 2)),
        st.tuples(st.just("save"), st.integers(0, 1)),
        st.tuples(st.sampled_from(["interrupt", "distrust", "abort"]), st.just(0)),
    ),
    max_size=14,
)


class Story:
    """Applies actions, and knows of each token which it is."""

    def __init__(self, drafted: int):
        self.sampled = CompletionBuilder(
            request(max_tokens=1_000, draft=draft_of(list(range(drafted))) if drafted else Draft())
        )
        self.durable = list(range(drafted))
        self.sampled.begin(array("i"), version="v0")

    def act(self, action: str, size: int) -> None:
        sampled = self.sampled
        new = range(len(sampled), len(sampled) + size)
        if action == "take":
            sampled.take(piece(*new), model="m")
        elif action == "tell":
            message = [("told", 0, sampled.fresh + size)]
            sampled.take(piece(*new, versions=message), model="m")
        elif action == "assume":
            sampled.assume(f"v{size}" if size else None)
        elif action == "save":
            # Whoever follows a stream holds the last token back; only what has ended is all saved.
            self.keep(sampled.take_unsaved(hold=1))
        else:
            self.end(action)
            sampled.begin(array("i"), version="v1")

    def end(self, action: str) -> None:
        if action == "distrust":
            self.keep(self.sampled.discard_try())
            return
        if action == "abort":
            self.sampled.finish_reason = "abort"
        self.sampled.interrupt()
        self.keep(self.sampled.take_unsaved(hold=0))

    def keep(self, draft: Draft | None) -> None:
        if draft is not None:
            assert draft.start <= len(self.durable)
            assert not draft.ids or draft.start == len(self.durable)
            del self.durable[draft.start :]
            self.durable += unpack_ids(draft.ids)
            check_spans(draft.versions, len(self.durable))

    def check(self) -> None:
        sampled = self.sampled
        assert sampled.ids.tolist() == list(range(len(sampled)))
        assert sampled.logprobs.tolist() == logprobs_of(sampled.ids)
        assert self.durable == list(range(len(self.durable)))
        assert len(self.durable) == sampled.saved <= len(sampled)


def check_spans(spans: tuple[VersionSpan, ...], tokens: int) -> None:
    assert [span.start for span in spans] == [0, *(span.end for span in spans[:-1])][: len(spans)]
    assert all(span.start < span.end for span in spans)
    assert (spans[-1].end if spans else 0) == tokens


@settings(max_examples=300)
@given(drafted=st.integers(0, 3), actions=ACTIONS)
def test_tokens_logprobs_versions_and_drafts_stay_together(
    drafted: int, actions: list[tuple[str, int]]
) -> None:
    story = Story(drafted)
    for action, size in actions:
        story.act(action, size)
        story.check()
    story.sampled.finish_reason = "stop"
    completion = story.sampled.completion(model="m", tries=1, seconds=0)
    check_spans(completion.versions, len(unpack_ids(completion.ids)))
    assert len(unpack_logprobs(completion.logprobs)) == len(unpack_ids(completion.ids))
    assert list(completion.seams) == sorted(set(completion.seams))
    assert all(0 < seam < len(story.sampled) for seam in completion.seams)
