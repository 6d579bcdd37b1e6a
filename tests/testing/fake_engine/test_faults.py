"""Each way in which an engine misbehaves, as a bare client sees it, plain and in a stream."""

import asyncio
import json
import math
from collections.abc import Iterator

import aiohttp
import pytest

from holdfast.testing import FakeEngine, Fault, FaultKind
from holdfast.testing.fake_engine.faults import HARMLESS, FaultPlan
from holdfast.testing.fake_engine.options import Dialect
from support.testing.http_client import PATHS, PROMPT, Answer, Sampled, ask, body, sampled, send

TOKENS = 20
WIRES: dict[str, Dialect] = {
    "completions": "vllm-scale-out",
    "chat": "vllm-scale-out",
    "generate": "vllm-scale-out",
    "sglang": "sglang",
    "fireworks": "fireworks",
}


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[str, FakeEngine]]:
    """Answers have TOKENS tokens and no end of their own."""
    with (
        FakeEngine(dialect="vllm-scale-out", mean_length=0) as vllm,
        FakeEngine(dialect="sglang", mean_length=0) as sglang,
        FakeEngine(dialect="fireworks", mean_length=0) as fireworks,
    ):
        yield {"vllm-scale-out": vllm, "sglang": sglang, "fireworks": fireworks}


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def engine(engines: dict[str, FakeEngine], wire: str) -> FakeEngine:
    result = engines[WIRES[wire]]
    result.set_faults()
    result.reset()
    return result


def struck(engine: FakeEngine, wire: str, fault: Fault, *, stream: bool) -> Answer:
    engine.set_faults(fault)
    engine.reset()
    answer = ask(engine, wire, stream=stream, max_tokens=TOKENS)
    assert engine.stats().faults == {fault.kind: 1}
    return answer


def right(engine: FakeEngine, wire: str) -> Sampled:
    engine.set_faults()
    return sampled(wire, [ask(engine, wire, max_tokens=TOKENS).json])


# --- streams that end in the middle


def test_a_cut_stream_breaks_after_its_first_tokens(engine: FakeEngine, wire: str) -> None:
    answer = struck(engine, wire, Fault(FaultKind.STREAM_CUT, after=7), stream=True)
    assert (answer.status, type(answer.broke), answer.done) == (
        200,
        aiohttp.ClientPayloadError,
        False,
    )
    assert sampled(wire, answer.events).ids == right(engine, wire).ids[:7]


def test_only_what_was_sampled_before_the_cut_is_counted(engine: FakeEngine, wire: str) -> None:
    struck(engine, wire, Fault(FaultKind.STREAM_CUT, after=7), stream=True)
    stats = engine.stats()
    assert (stats.tokens, stats.completions) == (7, 0)
    assert (stats.streams, stats.streams_cut) == (1, 1)


def test_an_error_event_comes_inside_a_good_stream(engine: FakeEngine, wire: str) -> None:
    answer = struck(engine, wire, Fault(FaultKind.STREAM_ERROR, after=7), stream=True)
    assert (answer.status, answer.broke, answer.done) == (200, None, True)
    *before, error = answer.events
    assert "EngineCore" in error["error"]["message"]
    assert sampled(wire, before).ids == right(engine, wire).ids[:7]
    assert struck(engine, wire, Fault(FaultKind.STREAM_ERROR), stream=False).status == 500


def test_a_stream_ends_politely_but_too_early(engine: FakeEngine, wire: str) -> None:
    answer = struck(engine, wire, Fault(FaultKind.STREAM_END, after=7), stream=True)
    assert (answer.status, answer.broke, answer.done) == (200, None, False)
    seen = sampled(wire, answer.events)
    assert (seen.ids, seen.finish) == (right(engine, wire).ids[:7], None)


def test_a_stream_stalls(engine: FakeEngine, wire: str) -> None:
    engine.set_faults(Fault(FaultKind.STREAM_STALL, after=7))
    request = body(engine, wire, stream=True, max_tokens=TOKENS)
    answer = asyncio.run(send(engine, PATHS[wire], request, seconds=2.0))
    assert isinstance(answer.broke, TimeoutError)
    assert sampled(wire, answer.events).ids == right(engine, wire).ids[:7]


@pytest.mark.parametrize("stream", [False, True])
def test_an_abort_keeps_the_first_tokens(engine: FakeEngine, wire: str, stream: bool) -> None:
    answer = struck(engine, wire, Fault(FaultKind.ABORT, after=7), stream=stream)
    seen = sampled(wire, answer.events if stream else [answer.json])
    expected = right(engine, wire)
    assert seen.finish == ("error" if wire == "fireworks" else "abort")
    assert (seen.ids, seen.logprobs) == (expected.ids[:7], expected.logprobs[:7])
    assert engine.stats().completions == 1, "of the right one"
    assert answer.broke is None
    assert answer.done is stream


def test_a_torn_event_ends_a_stream(engine: FakeEngine, wire: str) -> None:
    answer = struck(engine, wire, Fault(FaultKind.TRUNCATED_BODY, after=7), stream=True)
    assert isinstance(answer.broke, aiohttp.ClientPayloadError)
    *whole, torn = answer.data
    assert sampled(wire, [json.loads(item) for item in whole]).ids == right(engine, wire).ids[:7]
    with pytest.raises(json.JSONDecodeError):
        json.loads(torn)


# --- chunks that are wrong


def test_a_chunk_is_not_json_and_the_stream_goes_on(engine: FakeEngine, wire: str) -> None:
    answer = struck(engine, wire, Fault(FaultKind.MALFORMED_JSON, after=7), stream=True)
    assert answer.done
    with pytest.raises(json.JSONDecodeError):
        _ = answer.events


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_are_short(engine: FakeEngine, wire: str, stream: bool) -> None:
    answer = struck(engine, wire, Fault(FaultKind.LENGTH_MISMATCH, after=7), stream=stream)
    seen = sampled(wire, answer.events if stream else [answer.json])
    assert (len(seen.ids), len(seen.logprobs)) == (TOKENS, TOKENS - 1)


@pytest.mark.parametrize("stream", [False, True])
def test_a_logprob_is_not_finite(engine: FakeEngine, wire: str, stream: bool) -> None:
    answer = struck(engine, wire, Fault(FaultKind.NAN_LOGPROB, after=7), stream=stream)
    assert b"NaN" in answer.body
    seen = sampled(wire, answer.events if stream else [answer.json])
    assert sum(math.isnan(logprob) for logprob in seen.logprobs) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_there_are_more_tokens_than_were_asked_for(
    engine: FakeEngine, wire: str, stream: bool
) -> None:
    answer = struck(engine, wire, Fault(FaultKind.OVERLONG, after=7), stream=stream)
    seen = sampled(wire, answer.events if stream else [answer.json])
    assert len(seen.ids) == len(seen.logprobs) > TOKENS


def test_a_chunk_comes_twice(engine: FakeEngine, wire: str) -> None:
    answer = struck(engine, wire, Fault(FaultKind.DUPLICATE_CHUNK, after=7), stream=True)
    seen, expected = sampled(wire, answer.events), right(engine, wire)
    assert seen.ids == expected.ids[:8] + expected.ids[7:]
    usage = answer.events[-1].get("usage") or {}
    if wire == "sglang":
        usage = answer.events[-1]["meta_info"]
    assert usage["completion_tokens"] == TOKENS, "the count is honest"


def test_a_chunk_without_text_carries_its_token_all_the_same(engine: FakeEngine, wire: str) -> None:
    answer = struck(engine, wire, Fault(FaultKind.EMPTY_DELTA, after=7), stream=True)
    seen, expected = sampled(wire, answer.events), right(engine, wire)
    assert (seen.ids, seen.logprobs) == (expected.ids, expected.logprobs)
    if wire != "generate":  # It knows no text.
        assert seen.text == expected.text[:7] + expected.text[8:]


@pytest.mark.parametrize("stream", [False, True])
def test_ids_are_missing(engine: FakeEngine, wire: str, stream: bool) -> None:
    reply = struck(engine, wire, Fault(FaultKind.MISSING_IDS, after=7), stream=stream)
    answers = reply.events if stream else [reply.json]
    if wire == "sglang":
        assert sum("output_ids" not in answer for answer in answers) == 1
        return
    assert len(sampled(wire, answers).ids) == (TOKENS - 1 if stream else 0)


@pytest.mark.parametrize("stream", [False, True])
def test_ids_contradict_their_logprobs_where_both_are_told(
    engine: FakeEngine, wire: str, stream: bool
) -> None:
    reply = struck(engine, wire, Fault(FaultKind.WRONG_IDS, after=7), stream=stream)
    answer = reply.events[7] if stream else reply.json
    if wire == "generate":
        choice = answer["choices"][0]
        scored = [item["token_id"] for item in choice["logprobs"]["content"]]
        assert choice["token_ids"] != scored
    if wire == "sglang":
        scored = [token for _, token, _ in answer["meta_info"]["output_token_logprobs"]]
        assert answer["output_ids"] != scored
    if wire == "fireworks":
        choice = answer["choices"][0]
        scored = [item["token_id"] for item in choice["logprobs"]["content"]]
        assert choice["token_ids"] != scored
    if wire == "completions":
        assert sampled(wire, reply.events if stream else [answer]).ids == right(engine, wire).ids


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", sorted(HARMLESS))
def test_after_what_is_harmless_ids_and_logprobs_are_right(
    engine: FakeEngine, wire: str, kind: FaultKind, stream: bool
) -> None:
    answer = struck(engine, wire, Fault(kind, seconds=0.01), stream=stream)
    seen, expected = sampled(wire, answer.events if stream else [answer.json]), right(engine, wire)
    assert (seen.ids, seen.logprobs) == (expected.ids, expected.logprobs)
    assert seen.finish == expected.finish


# --- lies about the whole


@pytest.mark.parametrize("stream", [False, True])
def test_the_prompt_that_is_told_is_not_the_one_that_was_sent(
    engine: FakeEngine, wire: str, stream: bool
) -> None:
    answer = struck(engine, wire, Fault(FaultKind.WRONG_PROMPT), stream=stream)
    seen = sampled(wire, answer.events if stream else [answer.json])
    assert seen.prompt is not None
    assert (len(seen.prompt), seen.prompt[1:]) == (len(PROMPT), PROMPT[1:])
    assert seen.prompt != PROMPT
    assert seen.ids == right(engine, wire).ids


@pytest.mark.parametrize("stream", [False, True])
def test_another_prompt_is_answered(engine: FakeEngine, wire: str, stream: bool) -> None:
    answer = struck(engine, wire, Fault(FaultKind.ANOTHER_PROMPT), stream=stream)
    seen = sampled(wire, answer.events if stream else [answer.json])
    assert seen.prompt == [*PROMPT, 32]
    assert seen.ids != right(engine, wire).ids
    last = answer.events[-1] if stream else answer.json
    usage = last["meta_info"] if wire == "sglang" else last["usage"]
    assert usage["prompt_tokens"] == len(PROMPT) + 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", [FaultKind.WRONG_MODEL, FaultKind.ANOTHER_MODEL])
def test_another_model_is_named_where_the_wire_names_one(
    engine: FakeEngine, wire: str, kind: FaultKind, stream: bool
) -> None:
    reply = struck(engine, wire, Fault(kind, after=7), stream=stream)
    answers = reply.events if stream else [reply.json]
    wrong = [answer.get("model", "").startswith("not-") for answer in answers]
    if wire == "sglang" or (wire == "generate" and stream):
        assert not any(wrong)
    elif kind == FaultKind.ANOTHER_MODEL:
        assert all(wrong)
        assert sampled(wire, answers).ids != right(engine, wire).ids
    else:
        assert sum(wrong) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_comes_with_status_200(engine: FakeEngine, wire: str, stream: bool) -> None:
    answer = struck(engine, wire, Fault(FaultKind.ERROR_200), stream=stream)
    assert (answer.status, "message" in answer.json["error"]) == (200, True)
    assert engine.stats().tokens == 0


# --- which requests, and when


def test_a_fault_in_the_middle_happens_also_in_a_short_answer(
    engine: FakeEngine, wire: str
) -> None:
    answer = struck(engine, wire, Fault(FaultKind.STREAM_CUT, after=10_000), stream=True)
    assert answer.broke is not None
    assert len(sampled(wire, answer.events).ids) == TOKENS - 1
    reply = struck(engine, wire, Fault(FaultKind.STREAM_CUT), stream=True)
    assert len(sampled(wire, reply.events).ids) == TOKENS // 2


def test_a_fault_can_spare_the_first_tries_and_other_endpoints() -> None:
    plan = FaultPlan([Fault(FaultKind.ABORT, skip=1, times=2, path="/v1/completions")])
    paths = ["/v1/completions", "/generate"]
    hits = [plan.strike("x", path) is not None for _ in range(4) for path in paths]
    assert hits[0::2] == [False, True, True, False]
    assert not any(hits[1::2])
    for_ever = FaultPlan([Fault(FaultKind.ABORT, skip=2, times=0)])
    assert [for_ever.strike("x") is not None for _ in range(5)] == [False, False, True, True, True]


def test_calls_and_endpoints_are_counted(engine: FakeEngine, wire: str) -> None:
    ask(engine, wire, max_tokens=3, seed=8, request_id="a/b")
    ask(engine, wire, max_tokens=4, stream=True, request_id="c")
    first, second = engine.calls()
    assert (first.id, first.path, first.max_tokens, first.seed) == ("a/b", PATHS[wire], 3, 8)
    assert (first.prompt_tokens, first.stream, second.stream) == (len(PROMPT), False, True)
    stats = engine.stats()
    assert (stats.endpoints, stats.tokens) == ({PATHS[wire]: 2}, 7)
    assert (stats.streams, stats.streams_cut, stats.completions) == (1, 0, 2)
