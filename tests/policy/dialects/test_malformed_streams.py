"""Streams that go wrong in the middle: what was good of them is kept, what was not is not."""

import asyncio
from typing import Any

import pytest

from holdfast.policy.dialects.dialect import Kind
from holdfast.policy.policy import Completion
from holdfast.records.errors import (
    BadAnswer,
    BadRequest,
    EngineUnavailable,
    HoldfastError,
    PolicyRefused,
)
from holdfast.records.step import VersionSpan
from support.policy.answers import (
    PROMPT,
    TOKEN_KINDS,
    answer_body,
    events,
    logprobs_of,
    plain,
    prompt_of_body,
    request,
    streamed,
)
from support.policy.canned_server import DONE, Answer, sse
from support.policy.clients import ONCE, ids, logprobs, sample, until
from support.policy.drafts import Kept

DIED = {"error": {"message": "EngineCore encountered an issue", "type": "x", "code": 500}}


def read(*sent: object, kind: Kind = Kind.VLLM, every: int = 1) -> Completion:
    reply = Answer(chunks=sse(*sent, DONE))
    return sample(reply, body=Kept().request(every=every), kind=kind, retry=ONCE)[0]


# --- errors under status 200


@pytest.mark.parametrize("kind", TOKEN_KINDS)
def test_an_error_event_is_an_error_although_the_stream_ends_well(kind: Kind) -> None:
    with pytest.raises(EngineUnavailable, match="EngineCore encountered an issue"):
        read(*events(kind, [5, 6], finish=None), DIED, kind=kind)


@pytest.mark.parametrize("kind", TOKEN_KINDS)
@pytest.mark.parametrize("together", [False, True])
def test_what_came_before_an_error_event_is_gone_on_from(kind: Kind, together: bool) -> None:
    chunks = sse(*events(kind, [5, 6, 7], finish=None), DIED, DONE)
    spaced = [part for chunk in chunks for part in (chunk, pause)]
    died = Answer(chunks=[b"".join(chunks)] if together else spaced)
    completion, bodies = sample(
        died, streamed(kind, [7, 8]), body=Kept().request(every=100), kind=kind
    )
    assert prompt_of_body(kind, bodies[1]) == [*PROMPT, 5, 6]
    assert ids(completion) == [5, 6, 7, 8]
    assert completion.seams == (2,)


@pytest.mark.parametrize("kind", [*TOKEN_KINDS, Kind.CHAT])
def test_an_error_in_a_whole_answer_is_an_error(kind: Kind) -> None:
    with pytest.raises(EngineUnavailable, match="EngineCore encountered an issue"):
        sample(Answer(body=DIED), kind=kind, retry=ONCE)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("gone", EngineUnavailable),
        ({"message": "gone"}, EngineUnavailable),
        ({"message": "gone", "code": "server_error"}, EngineUnavailable),
        ({"message": "gone", "code": 0}, EngineUnavailable),
        ({"message": "gone", "code": 429}, EngineUnavailable),
        ({"message": "gone", "code": 400}, BadRequest),
        ({"message": "gone", "code": 404}, PolicyRefused),
    ],
)
def test_the_code_in_an_error_event_decides_what_it_is(
    error: object, expected: type[HoldfastError]
) -> None:
    with pytest.raises(expected, match="gone"):
        read({"error": error})


def test_sglangs_abort_with_a_status_is_that_error() -> None:
    event = answer_body(Kind.SGLANG, [5])
    event["meta_info"]["finish_reason"] = {
        "type": "abort",
        "message": "out of memory",
        "status_code": 500,
    }
    with pytest.raises(EngineUnavailable, match=r"500.*out of memory"):
        read(event, kind=Kind.SGLANG)


# --- ends


@pytest.mark.parametrize("kind", TOKEN_KINDS)
def test_a_stream_without_a_finish_reason_is_no_completion(kind: Kind) -> None:
    with pytest.raises(EngineUnavailable, match="without a finish_reason"):
        read(*events(kind, [5, 6], finish=None), kind=kind)


@pytest.mark.parametrize("kind", TOKEN_KINDS)
def test_a_stream_that_ends_well_needs_no_last_word(kind: Kind) -> None:
    reply = Answer(chunks=sse(*events(kind, [5, 6])))
    assert ids(sample(reply, body=Kept().request(), kind=kind, retry=ONCE)[0]) == [5, 6]


@pytest.mark.parametrize("kind", TOKEN_KINDS)
def test_a_connection_that_breaks_after_the_end_takes_nothing_away(kind: Kind) -> None:
    """Going on from here would sample beyond the end."""
    kept = Kept()
    reply = streamed(kind, [5, 6], finish="stop", cut=True)
    completion, bodies = sample(reply, body=kept.request(), kind=kind, retry=ONCE)
    assert ids(completion) == [5, 6]
    assert (completion.finish_reason, completion.tries, completion.seams) == ("stop", 1, ())
    assert len(bodies) == 1


@pytest.mark.parametrize("kind", TOKEN_KINDS)
def test_tokens_after_the_end_are_an_error(kind: Kind) -> None:
    late: dict[str, Any] = {"total": 3} if kind is Kind.SGLANG else {}
    with pytest.raises(BadAnswer, match="goes on after its finish_reason 'stop'"):
        read(*events(kind, [5, 6]), answer_body(kind, [7], **late), kind=kind)


# --- events that look like nothing


def test_an_event_without_text_still_has_its_tokens() -> None:
    silent = answer_body(Kind.VLLM, [6], finish=None)
    silent["choices"][0]["text"] = ""
    completion = read(answer_body(Kind.VLLM, [5], finish=None), silent, answer_body(Kind.VLLM, [7]))
    assert ids(completion) == [5, 6, 7]
    assert logprobs(completion) == logprobs_of([5, 6, 7])


@pytest.mark.parametrize("kind", TOKEN_KINDS)
def test_an_event_whose_ids_are_missing_is_a_hole_in_the_middle(kind: Kind) -> None:
    sent = events(kind, [5, 6, 7])
    holder = sent[1] if kind is Kind.SGLANG else sent[1]["choices"][0]
    holder["output_ids" if kind is Kind.SGLANG else "token_ids"] = None
    for item in (holder.get("logprobs") or {}).get("content", ()) if kind is Kind.FIREWORKS else ():
        del item["token_id"]
    if kind is Kind.VLLM:
        holder["text"] = ""  # Nothing but the logprob tells that there was a token.
    with pytest.raises(BadAnswer, match=r"no (tokens|output_ids)"):
        read(*sent, kind=kind)


def test_an_event_with_the_end_and_no_tokens_is_the_end() -> None:
    last = answer_body(Kind.VLLM, [], finish="length")
    last["choices"][0].update(text="held back until now", logprobs=None)
    completion = read(answer_body(Kind.VLLM, [5], finish=None), last)
    assert (ids(completion), completion.finish_reason) == ([5], "length")


def test_the_event_that_counts_the_tokens_is_believed_and_checked() -> None:
    def counted(tokens: int) -> dict[str, Any]:
        return {"model": "m", "choices": [], "usage": {"completion_tokens": tokens}}

    assert ids(read(*events(Kind.VLLM, [5, 6]), counted(2))) == [5, 6]
    with pytest.raises(BadAnswer, match="sampled 3 tokens by its own count, and sent 2"):
        read(*events(Kind.VLLM, [5, 6]), counted(3))


# --- what was said before a lie


@pytest.mark.parametrize("kind", TOKEN_KINDS)
def test_a_lie_in_mid_stream_takes_what_the_same_try_gave_with_it(kind: Kind) -> None:
    first = events(kind, [5, 6, 7], finish=None)
    more: dict[str, Any] = {"total": 4} if kind is Kind.SGLANG else {}
    lie = Answer(chunks=sse(*first, answer_body(kind, [8], logprobs=[2.0], **more), DONE))
    completion, bodies = sample(
        lie, streamed(kind, [1, 2]), body=Kept().request(every=100), kind=kind
    )
    assert prompt_of_body(kind, bodies[1]) == PROMPT
    assert ids(completion) == [1, 2]
    assert completion.seams == ()


def test_what_is_durable_before_a_lie_is_taken_back() -> None:
    kept, kind = Kept(), Kind.VLLM
    truth, lie = events(kind, [5, 6, 7], finish=None), answer_body(kind, [8], logprobs=[2.0])
    completion, bodies = sample(
        Answer(chunks=[*sse(*truth), lambda: until(lambda: bool(kept.ids)), *sse(lie)]),
        streamed(kind, [1, 2]),
        body=kept.request(every=1),
        kind=kind,
    )
    taken_back = [draft for draft in kept.drafts if not draft.ids]
    assert [draft.start for draft in taken_back] == [0]
    assert kept.ids in ([], [1])
    assert prompt_of_body(kind, bodies[1]) == PROMPT
    assert (ids(completion), completion.seams) == ([1, 2], ())


@pytest.mark.parametrize("at", range(4))
def test_the_evidence_is_the_event_that_is_to_blame_whatever_comes_with_it(at: int) -> None:
    sent = events(Kind.VLLM, [50, 51, 52, 53])
    sent[at]["choices"][0]["logprobs"]["token_logprobs"] = [0.75]
    whole = Answer(chunks=[b"".join(sse(*sent))])
    with pytest.raises(BadAnswer, match=r"positive \(0\.75\)") as caught:
        sample(whole, body=Kept().request(), retry=ONCE)
    assert f'"text": "{chr(50 + at)}"' in str(caught.value)


async def pause() -> None:
    await asyncio.sleep(0.02)


# --- SGLang's two ways to stream


@pytest.mark.parametrize("repeat", [False, True], ids=["incremental", "cumulative"])
def test_both_kinds_of_sglang_streams_are_read_alike(repeat: bool) -> None:
    sent = events(Kind.SGLANG, [5, 5, 6, 7], repeat=repeat)
    completion = read(*sent, kind=Kind.SGLANG)
    assert ids(completion) == [5, 5, 6, 7]
    assert logprobs(completion) == logprobs_of([5, 5, 6, 7])


@pytest.mark.parametrize("repeat", [False, True], ids=["incremental", "cumulative"])
def test_the_weights_that_each_event_of_sglang_names_sampled_its_tokens(repeat: bool) -> None:
    sent = events(Kind.SGLANG, [5, 6, 7, 8], repeat=repeat)
    for event, version in zip(sent, ["a", "a", "b", "b"], strict=True):
        event["meta_info"]["weight_version"] = version
    completion = read(*sent, kind=Kind.SGLANG)
    assert completion.versions == (VersionSpan("a", 0, 2), VersionSpan("b", 2, 4))


@pytest.mark.parametrize(
    ("second", "what"),
    [
        (answer_body(Kind.SGLANG, [6, 6], total=2), "repeats other output_ids"),
        (answer_body(Kind.SGLANG, [5, 6, 7], total=2), "3 output_ids after 1, 2 tokens"),
        (answer_body(Kind.SGLANG, [6], total=3), "1 output_ids after 1, 3 tokens"),
        (answer_body(Kind.SGLANG, [5, 6], total=None), "nobody knows which"),
        (answer_body(Kind.SGLANG, [5, 6], logprobs=[-1.0], total=2), "logprobs"),
    ],
)
def test_an_sglang_stream_that_does_not_add_up_is_an_error(second: object, what: str) -> None:
    first = answer_body(Kind.SGLANG, [5], finish=None)
    with pytest.raises(BadAnswer, match=what):
        read(first, second, kind=Kind.SGLANG)


def test_a_plain_request_is_not_streamed() -> None:
    _, bodies = sample(plain(Kind.VLLM, [5]), body=request())
    assert "stream" not in bodies[0]
