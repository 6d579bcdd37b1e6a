"""Recorded streams are read alike wherever the network cuts their bytes."""

import json
from array import array
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.policy.client.completion_builder import CompletionBuilder
from holdfast.policy.dialects.completions import Completions
from holdfast.policy.dialects.sse import END, SseParser
from holdfast.policy.policy import Draft, Partial
from support.policy.answers import request
from support.policy.canned_server import Answer
from support.policy.clients import ids, logprobs, sample
from support.policy.recordings import recorded

PROMPT = [998, 369, 264, 300, 10, 366, 14, 1427, 347]
RECORDED = {
    "completions_stream": (
        [493, 1869, 425, 1463],
        [-7.677435398101807, -7.360464572906494, -7.340453147888184, -7.987926483154297],
    ),
    "completions_stream_scaleout": (
        [493, 667, 1583, 1463],
        [-7.450634479522705, -7.741465091705322, -7.3765153884887695, -7.477823257446289],
    ),
}


def bytes_of(name: str) -> bytes:
    text: str = recorded(name)["response"]
    return text.encode()


async def drop(_: Draft) -> None:
    """Nothing is kept."""


def read(chunks: list[bytes]) -> tuple[list[int], list[float], str | None]:
    sampled, events, reader = (
        CompletionBuilder(request(prompt=PROMPT)),
        SseParser(),
        Completions().reader(),
    )
    sampled.begin(array("i", PROMPT), version=None)
    for chunk in chunks:
        for data in events.feed(chunk):
            if data != END and (piece := reader(data)) is not None:
                sampled.take(piece, model="tiny")
    return sampled.ids.tolist(), sampled.logprobs.tolist(), sampled.finish_reason


def split(raw: bytes, places: list[int]) -> list[bytes]:
    cuts = [0, *sorted(place % (len(raw) + 1) for place in places), len(raw)]
    return [raw[start:end] for start, end in pairwise(cuts)]


@pytest.mark.parametrize("name", sorted(RECORDED))
@given(
    places=st.lists(st.integers(0, 1 << 16), max_size=12),
    line=st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_a_recorded_stream_is_read_alike_wherever_it_is_cut(
    name: str, places: list[int], line: str
) -> None:
    raw = bytes_of(name).replace(b"\n", line.encode())
    # The last line end may be half of another: a stream of bare CRs ends with one byte more.
    chunks = [*split(raw, places), b"\n" if line == "\r" else b""]
    assert read(chunks) == (*RECORDED[name], "length")


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_a_recorded_stream_is_read_alike_byte_by_byte(name: str) -> None:
    raw = bytes_of(name)
    assert read([raw[at : at + 1] for at in range(len(raw))]) == (*RECORDED[name], "length")


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_a_recorded_stream_over_a_socket_is_one_completion(name: str) -> None:
    raw = bytes_of(name)
    body = request(prompt=PROMPT, partial=Partial(drop, 1))
    completion, bodies = sample(Answer(chunks=split(raw, [100, 777])), body=body, model="tiny")
    assert (ids(completion), logprobs(completion)) == RECORDED[name]
    assert (completion.finish_reason, completion.seams) == ("length", ())
    assert bodies[0]["stream"] is True


def as_completions(line: str) -> bytes:
    """A recorded chunk of a chat as the same chunk of a completion: the chat wire is not streamed
    by us, but vLLM cuts both off in the same way."""
    if "[DONE]" in line:
        return b"data: [DONE]\n\n"
    event: dict[str, Any] = json.loads(line.removeprefix("data: "))
    choice = event["choices"][0]
    choice["text"] = choice.pop("delta").get("content", "")
    choice["logprobs"] = {
        "token_logprobs": [item["logprob"] for item in choice["logprobs"]["content"]]
    }
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def test_the_last_event_of_a_recorded_abort_has_no_text_and_still_a_token() -> None:
    tail = [as_completions(line) for line in recorded("chat_stream_abort_tail")]
    rest = [
        line.encode() + b"\n\n" for line in bytes_of("completions_stream").decode().split("\n\n")
    ]
    rest[0] = rest[0].replace(b"1427,347]", b"1427,347,1809,116]")
    rest[4] = rest[4].replace(b'"prompt_tokens":9', b'"prompt_tokens":11')
    body = request(prompt=PROMPT, partial=Partial(drop, 100))
    completion, bodies = sample(Answer(chunks=tail), Answer(chunks=rest), body=body, model="tiny")
    assert ids(completion) == [1809, 116, 493, 1869, 425, 1463]
    assert logprobs(completion)[:2] == [-7.525223731994629, -7.383501052856445]
    assert bodies[1]["prompt"] == [*PROMPT, 1809, 116]
    assert completion.seams == (2,)
