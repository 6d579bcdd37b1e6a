"""Streams of an engine that is interrupted or lies end as those of one that is well."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from holdfast.policy.dialects.dialect import Kind
from holdfast.policy.policy import Completion, Partial, Request
from holdfast.policy.retry import RetryPolicy
from holdfast.records.encoding.tokens import count, unpack_ids
from holdfast.records.errors import BadAnswer, ContextOverflow
from holdfast.records.sampling import Sampling
from holdfast.testing import FakeEngine, Fault, FaultKind
from holdfast.testing.fake_engine.options import Dialect
from support.policy.answers import TOKEN_KINDS
from support.policy.drafts import Kept
from support.policy.fake_engines import PROMPT, QUICK, sample_now

INTERRUPTIONS = [
    FaultKind.ABORT,
    FaultKind.STREAM_CUT,
    FaultKind.STREAM_ERROR,
    FaultKind.STREAM_END,
    FaultKind.STREAM_STALL,
]
LIES = [
    FaultKind.MALFORMED_JSON,
    FaultKind.MISSING_IDS,
    FaultKind.LENGTH_MISMATCH,
    FaultKind.NAN_LOGPROB,
    FaultKind.DUPLICATE_CHUNK,
    FaultKind.OVERLONG,
]
NAMED_LIES = [FaultKind.WRONG_PROMPT, FaultKind.ANOTHER_MODEL, FaultKind.WRONG_MODEL]
STALLING = RetryPolicy(tries=3, deadline=60, stall_timeout=1.0, base=0.01, cap=0.02)


TAKEN_FOR: dict[Kind, Dialect] = {
    Kind.VLLM: "vllm",
    Kind.VLLM_GENERATE: "vllm-scale-out",
    Kind.SGLANG: "sglang",
    Kind.FIREWORKS: "fireworks",
}


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[Kind, FakeEngine]]:
    with ExitStack() as stack:
        yield {
            kind: stack.enter_context(FakeEngine(mean_length=0, dialect=dialect))
            for kind, dialect in TAKEN_FOR.items()
        }


@pytest.fixture
def engine(engines: dict[Kind, FakeEngine], kind: Kind) -> FakeEngine:
    engine = engines[kind]
    engine.set_faults()
    engine.reset()
    return engine


@pytest.fixture
def clean(engine: FakeEngine, kind: Kind) -> Completion:
    return sample_now(engine, request(), kind=kind)


def request(kept: Kept | None = None) -> Request:
    partial = Partial(kept.save, 4) if kept else None
    return Request(PROMPT, Sampling(16), 3, "s", partial=partial)


def same(completion: Completion, clean: Completion) -> None:
    """What the spans say may be less; they cover the same tokens."""
    assert (completion.ids, completion.logprobs) == (clean.ids, clean.logprobs)
    assert completion.finish_reason == clean.finish_reason == "length"
    assert completion.versions[0].start == 0
    assert completion.versions[-1].end == count(completion.ids) == 16


@pytest.mark.parametrize("kind", TOKEN_KINDS)
@pytest.mark.parametrize("fault", INTERRUPTIONS)
def test_an_interrupted_stream_goes_on_to_the_same_tokens(
    engine: FakeEngine, clean: Completion, kind: Kind, fault: FaultKind
) -> None:
    engine.set_faults(Fault(fault, times=2, after=5))
    kept = Kept()
    retry = STALLING if fault is FaultKind.STREAM_STALL else QUICK
    completion = sample_now(engine, request(kept), kind=kind, retry=retry)
    same(completion, clean)
    assert completion.tries == 3
    # Fireworks has no abort that keeps tokens: it is an error, as everywhere else in its answers.
    begins_anew = kind is Kind.FIREWORKS and fault is FaultKind.ABORT
    assert bool(completion.seams) != begins_anew
    assert kept.ids == unpack_ids(completion.ids).tolist()[: len(kept.ids)]


@pytest.mark.parametrize("kind", TOKEN_KINDS)
@pytest.mark.parametrize("fault", LIES)
def test_of_a_stream_that_lies_nothing_is_kept(
    engine: FakeEngine, clean: Completion, kind: Kind, fault: FaultKind
) -> None:
    engine.set_faults(Fault(fault, times=2, after=5))
    kept = Kept()
    completion = sample_now(engine, request(kept), kind=kind)
    same(completion, clean)
    assert (completion.tries, completion.seams) == (3, ())
    assert kept.ids == unpack_ids(completion.ids).tolist()[: len(kept.ids)]


@pytest.mark.parametrize("kind", [Kind.VLLM, Kind.FIREWORKS])
@pytest.mark.parametrize("fault", NAMED_LIES)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_an_answer_of_another_model_or_prompt_is_never_taken(
    engine: FakeEngine, clean: Completion, kind: Kind, fault: FaultKind, stream: bool
) -> None:
    engine.set_faults(Fault(fault, times=2))
    same(sample_now(engine, request(Kept() if stream else None), kind=kind), clean)
    engine.set_faults(Fault(fault, times=0))
    with pytest.raises(BadAnswer):
        sample_now(engine, request(Kept() if stream else None), kind=kind)


@pytest.mark.parametrize("kind", TOKEN_KINDS)
def test_a_token_whose_text_is_empty_is_a_token(
    engine: FakeEngine, clean: Completion, kind: Kind
) -> None:
    engine.set_faults(Fault(FaultKind.EMPTY_DELTA, times=0))
    completion = sample_now(engine, request(Kept()), kind=kind)
    same(completion, clean)
    assert completion.tries == 1


UNSEEN = {
    # These wires do not name the tokens of their logprobs, or the model in a stream.
    (FaultKind.WRONG_IDS, Kind.VLLM),
    (FaultKind.ANOTHER_MODEL, Kind.SGLANG),
    (FaultKind.ANOTHER_MODEL, Kind.VLLM_GENERATE),
}
"""Lies that nobody can see."""
SEEN = [(fault, kind) for fault in FaultKind for kind in TOKEN_KINDS if (fault, kind) not in UNSEEN]


@pytest.mark.parametrize(("fault", "kind"), SEEN)
def test_whatever_goes_wrong_once_ends_in_the_right_tokens_or_an_error(
    engine: FakeEngine, clean: Completion, kind: Kind, fault: FaultKind
) -> None:
    engine.set_faults(Fault(fault, seconds=0.05))
    try:
        completion = sample_now(engine, request(Kept()), kind=kind)
    except ContextOverflow:
        assert fault is FaultKind.CONTEXT_OVERFLOW
        return
    same(completion, clean)
