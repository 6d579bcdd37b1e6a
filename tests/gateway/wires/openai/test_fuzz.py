"""Whatever is sent to OpenAI's wires is understood or refused with a 4xx: nothing else happens."""

import copy
import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.gateway.protocol.messages import GenerationRequest, RequestRejected, Wire
from holdfast.gateway.wires.openai.chat import OpenAIChat
from holdfast.gateway.wires.openai.completions import OpenAICompletions
from support.exhaustive import points
from support.gateway.openai_answers import ANSWER, TOOL

CHAT: Wire = OpenAIChat()
COMPLETIONS: Wire = OpenAICompletions()

CHAT_BODY: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}], "name": "u"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "r",
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "content": "x", "tool_call_id": "c"},
    ],
    "tools": [TOOL],
    "tool_choice": "auto",
    "max_tokens": 5,
    "temperature": 1.0,
    "top_p": 0.5,
    "stop": ["a"],
    "n": 2,
    "stream": True,
    "stream_options": {"include_usage": True},
    "logprobs": True,
    "top_logprobs": 0,
    "logit_bias": {},
    "response_format": {"type": "text"},
    "user": "u",
}
COMPLETIONS_BODY: dict[str, Any] = {
    "model": "m",
    "prompt": [[1, 2, 3]],
    "max_tokens": 5,
    "stop": "x",
    "logprobs": 1,
    "stream": False,
    "echo": False,
    "suffix": None,
}
BODIES = [(CHAT, CHAT_BODY), (COMPLETIONS, COMPLETIONS_BODY)]


def survives(wire: Wire, body: bytes) -> GenerationRequest | RequestRejected:
    """Any other exception is the test's failure. An ask can be written down and answered; a
    refusal is JSON in the provider's shape, and short."""
    try:
        request = wire.parse(body)
    except RequestRejected as refused:
        return properly(wire, refused)
    assert isinstance(request, GenerationRequest)
    assert msgspec.json.decode(msgspec.json.encode(request), type=GenerationRequest) == request
    json.loads(wire.format_answer(msgspec.structs.replace(request, logprobs=False), ANSWER))
    return request


def properly(wire: Wire, refused: RequestRejected) -> RequestRejected:
    assert 400 <= refused.status < 500
    bodies = wire.format_error(refused)
    assert set(json.loads(bodies)["error"]) == {"message", "type", "param", "code"}
    assert len(bodies) < 4000
    return refused


ODD: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**31, 2**63, 2**64, -(2**64), 10**300, 0, -1, 1]),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["auto", "user", "tool", "text", "image_url", "function", "\u0000", "\u2028"]),
)
JSON: st.SearchStrategy[Any] = st.recursive(
    ODD,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=4)
            | st.sampled_from(["role", "content", "type", "text", "function", "name", "id"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to everything inside, and of a member that each object does not have yet."""
    results: list[tuple[Any, ...]] = []
    if isinstance(value, dict):
        results.append((*path, "extra`' - at `$.x"))
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in inner:
        results.append((*path, key))
        if isinstance(item, dict | list):
            results += places(item, (*path, key))
    return results


def changed(body: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    made = copy.deepcopy(body)
    *above, last = path
    at: Any = made
    for key in above:
        at = at[key]
    at[last] = value
    return made


@settings(max_examples=points(200, 800))
@given(st.data(), st.sampled_from(BODIES))
def test_good_bodies_with_something_odd_in_them(
    data: st.DataObject, target: tuple[Wire, dict[str, Any]]
) -> None:
    wire, body = target
    path = data.draw(st.sampled_from(places(body)))
    survives(wire, json.dumps(changed(body, path, data.draw(JSON))).encode())


@settings(max_examples=points(100, 400))
@given(JSON | st.dictionaries(st.sampled_from(sorted(CHAT_BODY)), JSON), st.sampled_from(BODIES))
def test_any_json(value: Any, target: tuple[Wire, object]) -> None:
    survives(target[0], json.dumps(value).encode())


@settings(max_examples=points(100, 400))
@given(st.binary(max_size=60), st.sampled_from(BODIES))
@example(b"", BODIES[0])
def test_any_bytes(raw: bytes, target: tuple[Wire, object]) -> None:
    assert isinstance(survives(target[0], raw), RequestRejected)


@settings(max_examples=points(100, 400))
@given(st.data(), st.binary(max_size=3), st.sampled_from(BODIES))
def test_good_bodies_with_bytes_damaged(
    data: st.DataObject, damage: bytes, target: tuple[Wire, dict[str, Any]]
) -> None:
    wire, body = target
    raw = json.dumps(body).encode()
    at = data.draw(st.integers(0, len(raw)))
    survives(wire, raw[:at] + damage + raw[at + data.draw(st.integers(0, 4)) :])


def hi(content: bytes) -> bytes:
    return b'{"model": "m", "messages": [{"role": "user", "content": %b}]}' % content


def with_more(more: bytes) -> bytes:
    return b'{"model": "m", "messages": [{"role": "user", "content": "hi"}], %b}' % more


def deep(levels: int) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


def tool(schema: bytes) -> bytes:
    return b'"tools": [{"type": "function", "function": {"name": "f", "parameters": %b}}]' % schema


BOTTOMLESS = b"[" * 200_000
HOSTILE = {
    "a lone surrogate": hi(rb'"\ud83d"'),
    "a lone surrogate with text after it": hi(rb'"\ud83d and so on"'),
    "surrogates the wrong way round": hi(rb'"\udc00\ud800"'),
    "invalid UTF-8": hi(b'"\xff"'),
    "a surrogate in UTF-8": hi(b'"\xed\xa0\x80"'),
    "invalid UTF-8 in a name": with_more(b'"\xff": 1'),
    "a byte-order mark": b"\xef\xbb\xbf" + hi(b'"hi"'),
    "UTF-16": hi(b'"hi"').decode().encode("utf-16"),
    "NaN": with_more(b'"temperature": NaN'),
    "infinity": with_more(b'"temperature": Infinity'),
    "a float beyond floats": with_more(b'"temperature": 1e999'),
    "an integer beyond floats": with_more(b'"temperature": %b' % (b"9" * 400)),
    "an integer without end": with_more(b'"max_tokens": %b' % (b"9" * 100_000)),
    "a raw line break": hi(b'"a\nb"'),
    "something after the end": hi(b'"hi"') + b"{}",
    "bottomless content": hi(BOTTOMLESS),
    "a bottomless book": with_more(b'"metadata": ' + BOTTOMLESS),
    "a bottomless part": hi(b'[{"type": "image_url", "image_url": %b' % BOTTOMLESS),
    "a bottomless unknown": with_more(b'"x": ' + BOTTOMLESS),
    "a long unknown name": with_more(b'"%b": 1' % (b"x" * 100_000)),
    "a long unknown role": hi(b'"hi"').replace(b"user", b"u" * 100_000),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bodies_are_refused(name: str) -> None:
    assert isinstance(survives(CHAT, HOSTILE[name]), RequestRejected)
    bare = HOSTILE[name].replace(b'"messages": [{"role": "user", "content": ', b'"prompt": ')
    assert isinstance(survives(COMPLETIONS, bare.replace(b"}]", b"")), RequestRejected)


def test_depth_is_refused_wherever_the_stack_ends() -> None:
    for levels in range(100, 1100):  # each: what can be read may be just too deep to be shown
        for more in (b'"response_format": %b', b'"tool_choice": %b', b'"x": %b'):
            assert isinstance(survives(CHAT, with_more(more % deep(levels))), RequestRejected)


def test_a_schema_is_kept_up_to_its_depth_and_refused_beyond() -> None:
    """The tool and its function are two levels of a hundred."""
    for levels in (*range(90, 130), *range(130, 1100, 23)):
        survivor = survives(CHAT, with_more(tool(deep(levels))))
        assert isinstance(survivor, GenerationRequest if levels <= 98 else RequestRejected)


def test_of_a_name_given_twice_the_last_counts() -> None:
    request = CHAT.parse(with_more(b'"n": 1, "n": 2'))
    assert request.n == 2


def test_integers_of_any_size_in_a_schema_are_kept() -> None:
    schema = b'{"maximum": 18446744073709551615, "minimum": -9223372036854775808}'
    survivor = survives(CHAT, with_more(tool(schema)))
    assert isinstance(survivor, GenerationRequest)
    assert survivor.tools[0]["function"] == {"name": "f", "parameters": json.loads(schema)}
