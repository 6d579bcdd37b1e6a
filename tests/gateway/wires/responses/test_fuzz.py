"""Whatever is sent to the responses wire is understood or refused with a 4xx, and nothing else."""

import copy
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.gateway.protocol.messages import GenerationRequest, RequestRejected
from holdfast.gateway.wires.responses.responses import OpenAIResponses
from support.exhaustive import points
from support.gateway.openai_answers import CALL, TEXT, answered, choice

WIRE = OpenAIResponses()
ANSWER = answered(choice(TEXT, calls=(CALL,), reasoning="Let me think."))
CALLED = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "id": "fc_a_2"}
THOUGHT = {"type": "reasoning_text", "text": "hm"}
BODY: dict[str, Any] = {
    "model": "m",
    "input": [
        {"role": "user", "content": "hi"},
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "x"}]},
        {"type": "reasoning", "id": "rs_a_0", "summary": [], "content": [THOUGHT]},
        {
            "type": "message",
            "role": "assistant",
            "id": "msg_a_1",
            "status": "completed",
            "content": [{"type": "output_text", "text": "y", "annotations": []}],
        },
        CALLED,
        {"type": "function_call_output", "call_id": "c", "output": "z"},
    ],
    "instructions": "s",
    "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}],
    "tool_choice": "auto",
    "max_output_tokens": 5,
    "temperature": 1.0,
    "top_p": 0.5,
    "stream": True,
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "text": {"format": {"type": "text"}, "verbosity": "medium"},
    "reasoning": {"effort": None, "summary": "auto"},
    "truncation": "disabled",
    "metadata": {"a": "b"},
}


def survives(body: bytes) -> GenerationRequest | RequestRejected:
    """Any other exception is the test's failure. An ask can be recorded and answered; a refusal is
    JSON in OpenAI's shape, and short."""
    try:
        request = WIRE.parse(body)
    except RequestRejected as refused:
        return properly(refused)
    assert request.messages
    assert (
        msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=GenerationRequest) == request
    )
    json.loads(WIRE.format_answer(request, ANSWER))
    assert WIRE.stream(request).end(ANSWER)[-1].startswith(b"event: response.completed\n")
    return request


def properly(refused: RequestRejected) -> RequestRejected:
    assert 400 <= refused.status < 500
    bodies = WIRE.format_error(refused)
    assert set(json.loads(bodies)["error"]) == {"message", "type", "param", "code"}
    assert len(bodies) < 4000
    return refused


ODD: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**31, 2**63, 2**64, -(2**64), 10**300, 0, -1]),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["auto", "user", "assistant", "function_call", "input_image", "message", ""]),
    st.sampled_from(
        ["item_reference", "web_search", "msg_a_1", "call_0123456789abcdef_1", "\u0000", "\u2028"]
    ),
)
JSON: st.SearchStrategy[Any] = st.recursive(
    ODD,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=4) | st.sampled_from(["role", "content", "type", "text", "id"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to everything inside, and of a member that each object does not have yet."""
    results: list[tuple[Any, ...]] = (
        [(*path, "extra`' - at `$.x")] if isinstance(value, dict) else []
    )
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        results.append((*path, key))
        if isinstance(item, dict | list):
            results += places(item, (*path, key))
    return results


def changed(path: tuple[Any, ...], value: Any) -> bytes:
    made = copy.deepcopy(BODY)
    *above, last = path
    at: Any = made
    for key in above:
        at = at[key]
    at[last] = value
    return json.dumps(made).encode()


def test_the_good_body_is_good() -> None:
    assert isinstance(survives(json.dumps(BODY).encode()), GenerationRequest)


@settings(max_examples=points(250, 1000))
@given(st.sampled_from(places(BODY)), JSON)
def test_a_good_body_with_something_odd_in_it(path: tuple[Any, ...], value: Any) -> None:
    survives(changed(path, value))


@settings(max_examples=points(100, 400))
@given(st.lists(st.sampled_from(BODY["input"]) | JSON, max_size=6))
def test_items_in_any_order_with_others_between_them(items: list[Any]) -> None:
    survives(json.dumps({**BODY, "input": items}).encode())


@settings(max_examples=points(50, 200))
@given(JSON | st.dictionaries(st.sampled_from(sorted(BODY)), JSON))
def test_any_json(value: Any) -> None:
    survives(json.dumps(value).encode())


@settings(max_examples=points(50, 200))
@given(st.binary(max_size=60))
def test_any_bytes(raw: bytes) -> None:
    assert isinstance(survives(raw), RequestRejected)


@settings(max_examples=points(100, 400))
@given(st.integers(0, 1200), st.binary(max_size=3), st.integers(0, 4))
def test_a_good_body_with_bytes_damaged(at: int, damage: bytes, cut: int) -> None:
    raw = json.dumps(BODY).encode()
    survives(raw[:at] + damage + raw[at + cut :])


def deep(levels: int) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


def body_with(more: bytes, content: bytes = b'"hi"') -> bytes:
    return b'{"model": "m", "input": [{"role": "user", "content": %b}], %b}' % (content, more)


HOSTILE = {
    "a lone surrogate": body_with(b'"user": "u"', rb'"\ud83d"'),
    "invalid UTF-8": body_with(b'"user": "u"', b'"\xff"'),
    "NaN": body_with(b'"temperature": NaN'),
    "a float beyond floats": body_with(b'"temperature": 1e999'),
    "an integer beyond floats": body_with(b'"temperature": %b' % (b"9" * 400)),
    "bottomless content": body_with(b'"user": "u"', b"[" * 200_000),
    "bottomless metadata": body_with(b'"metadata": ' + b"[" * 200_000),
    "a long unknown name": body_with(b'"%b": 1' % (b"x" * 100_000)),
    "a long unknown type": body_with(b'"user": "u"', b'[{"type": "%b"}]' % (b"x" * 100_000)),
    "a long unknown choice": body_with(b'"tool_choice": "%b"' % (b"x" * 100_000)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bodies_are_refused(name: str) -> None:
    assert isinstance(survives(HOSTILE[name]), RequestRejected)


def test_depth_is_refused_wherever_the_stack_ends() -> None:
    schema = b'"tools": [{"type": "function", "name": "f", "parameters": %b}]'
    for levels in (*range(90, 130), *range(130, 1100, 23)):
        for more in (b'"text": {"format": %b}', b'"tool_choice": %b', b'"x": %b', b'"prompt": %b'):
            assert isinstance(survives(body_with(more % deep(levels))), RequestRejected)
        survivor = survives(body_with(schema % deep(levels)))
        assert isinstance(survivor, GenerationRequest if levels <= 98 else RequestRejected)
