"""What Anthropic's wire refuses, and how it says so; whatever is sent, nothing else happens."""

import json
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.gateway.protocol.messages import GenerationRequest, RequestRejected
from holdfast.gateway.wires.anthropic.messages import AnthropicMessages, parse_count_request
from support.exhaustive import points

WIRE = AnthropicMessages()
HELLO = {"role": "user", "content": "Hello"}
USE = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
TOOL = {"name": "look", "input_schema": {"type": "object"}}
BODY = {"model": "m", "max_tokens": 16, "messages": [HELLO]}


def refused(body: object) -> RequestRejected:
    with pytest.raises(RequestRejected) as caught:
        WIRE.parse(body if isinstance(body, bytes) else json.dumps(body).encode())
    assert caught.value.status == 400
    return caught.value


def turn(role: str, *blocks: object) -> dict[str, object]:
    return {"role": role, "content": list(blocks)}


def image(**source: object) -> dict[str, object]:
    return {"type": "image", "source": source}


def nested(depth: int) -> object:
    return {"a": nested(depth - 1)} if depth else 1


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"container": "c"}, "container"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"context_management": {"edits": [{"type": "x"}]}}, "context_management"),
        ({"inference_geo": "eu"}, "inference_geo"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": True}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "disabled", "budget_tokens": 9}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"thinking": {"type": "adaptive", "depth": 3}}, "thinking.depth"),
        ({"output_config": {"effort": "colossal"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
        ({"output_config": {"format": "json"}}, "output_config.format"),
        ({"output_config": {"colour": "red"}}, "output_config.colour"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "unknown"}}, "tool_choice"),
        ({"tool_choice": {"type": "another"}}, "tool_choice.type"),
        ({"colour": "red"}, "colour"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 2**40}, "max_tokens"),
        ({"max_tokens": "16"}, "max_tokens"),
        ({"temperature": 1.5}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"stop_sequences": ["x", " "]}, "stop_sequences.1"),
        ({"model": ""}, "model"),
        ({"messages": []}, "messages"),
        ({"stream": 1}, "stream"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type"),
        ({"tools": [TOOL, {"type": "computer_20250124", "x": 1}]}, "tools.1.type"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tools": [{"name": "look"}]}, "tools.0.input_schema"),
        ({"tools": [{**TOOL, "name": "look at"}]}, "tools.0.name"),
        ({"tools": [{**TOOL, "colour": "red"}]}, "tools.0.colour"),
        ({"tools": [{**TOOL, "strict": True}]}, "tools.0.strict"),
        ({"tools": [{**TOOL, "defer_loading": True}]}, "tools.0.defer_loading"),
        ({"tools": [{**TOOL, "input_examples": [{}]}]}, "tools.0.input_examples"),
        ({"tools": [{**TOOL, "allowed_callers": ["x"]}]}, "tools.0.allowed_callers"),
        ({"tools": [{**TOOL, "input_schema": nested(70)}]}, "tools.0.input_schema"),
        ({"tools": [{**TOOL, "input_schema": {"maximum": 2**64}}]}, "tools.0.input_schema"),
    ],
)
def test_a_field_that_cannot_be_done_is_refused_by_its_name(
    fields: dict[str, object], where: str
) -> None:
    refusal = refused({**BODY, **fields})
    assert refusal.param == where
    assert where in refusal.message


@pytest.mark.parametrize(
    ("messages", "where"),
    [
        ([{"role": "tool", "content": "x"}], "messages.0.role"),
        ([{"role": "user"}], "messages.0.content"),
        ([{"role": "user", "content": "x", "name": "y"}], "messages.0.name"),
        ([{"role": "user", "content": ""}], "messages.0"),
        ([turn("user")], "messages.0"),
        ([turn("user", {"type": "image", "source": {}})], "messages.0.content.0.source.type"),
        ([turn("user", image(type="file", file_id="f"))], "messages.0.content.0.source.type"),
        ([turn("user", image(type="url", url="file:///etc"))], "messages.0.content.source.url"),
        (
            [turn("user", image(type="base64", media_type="text/x", data="QQ=="))],
            "messages.0.content.0.source.media_type",
        ),
        (
            [turn("assistant", image(type="url", url="https://x")), HELLO],
            "messages.0.content.0.type",
        ),
        ([turn("user", {"type": "text"})], "messages.0.content.0.text"),
        ([turn("user", {"type": "text", "text": 1})], "messages.0.content.0.text"),
        ([turn("user", {"type": "text", "text": "x", "y": 1})], "messages.0.content.0.y"),
        ([turn("user", USE)], "messages.0.content.0.type"),
        ([turn("assistant", {"type": "tool_result"}), HELLO], "messages.0.content.0.type"),
        ([turn("assistant", {**USE, "input": "{}"}), HELLO], "messages.0.content.0.input"),
        ([turn("assistant", {**USE, "caller": {"type": "x"}}), HELLO], "messages.0.content.caller"),
        (
            [turn("user", {"type": "tool_result", "tool_use_id": "t9"})],
            "messages.0.content",
        ),
        (
            [turn("user", {"type": "text", "text": "x", "citations": [{}]})],
            "messages.0.content.citations",
        ),
        ([HELLO, {"role": "assistant", "content": "The answer is ("}], "messages"),
    ],
)
def test_a_message_that_cannot_be_read_is_refused_with_its_place(
    messages: list[object], where: str
) -> None:
    refusal = refused({**BODY, "messages": messages})
    assert refusal.param == where
    assert where in refusal.message


@pytest.mark.parametrize("field", ["model", "max_tokens", "messages"])
def test_a_required_field_is_missed_by_its_name(field: str) -> None:
    refusal = refused({name: value for name, value in BODY.items() if name != field})
    assert refusal.message == f"{field}: Field required"


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"model": "\\ud800"}', b"[" * 100_000]
)
def test_what_is_no_object_is_refused(body: bytes) -> None:
    assert refused(body).message


def test_a_body_that_is_nested_too_deeply_is_refused() -> None:
    refusal = refused(b'{"metadata": {"a": ' + b"[" * 100_000)
    assert refusal.message == "The request body is nested too deeply"


def test_a_message_stays_short_whatever_is_sent() -> None:
    refusal = refused({**BODY, "x" * 100_000: 1})
    assert len(refusal.message) < 1000
    assert len(WIRE.format_error(refusal)) < 2000


def test_counting_takes_no_sampling() -> None:
    with pytest.raises(RequestRejected, match="max_tokens: Extra inputs are not permitted"):
        parse_count_request(json.dumps(BODY).encode())


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (409, "conflict_error"),
        (413, "request_too_large"),
        (422, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
        (529, "overloaded_error"),
    ],
)
def test_an_error_has_the_type_of_its_status(status: int, kind: str) -> None:
    data = json.loads(WIRE.format_error(RequestRejected(status, "no")))
    assert data == {"type": "error", "error": {"type": kind, "message": "no"}}


def test_an_error_says_its_own_type_its_place_and_its_code() -> None:
    own = RequestRejected(400, "no", kind="billing_error", param="model", code="spent")
    assert json.loads(WIRE.format_error(own))["error"] == {
        "type": "billing_error",
        "message": "model: no",
        "details": {"error_code": "spent"},
    }
    other = RequestRejected(400, "no", kind="server_error")
    assert json.loads(WIRE.format_error(other))["error"]["type"] == "invalid_request_error"


def test_agents_recognise_a_prompt_that_is_too_long() -> None:
    refusal = RequestRejected(400, "9000 tokens, 8192 at most", code="context_length_exceeded")
    message = json.loads(WIRE.format_error(refusal))["error"]["message"]
    assert message == "prompt is too long: 9000 tokens, 8192 at most"


# --- anything at all ---------------------------------------------------------------------------

_scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
_values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
_types = st.sampled_from(
    ["text", "tool_use", "tool_result", "thinking", "redacted_thinking", "image", "x"]
)


def _some(**fields: st.SearchStrategy[object]) -> st.SearchStrategy[dict[str, object]]:
    """Objects with some of the fields, and sometimes a foreign one."""
    optional = {**fields, "foreign": _values}
    return st.fixed_dictionaries({}, optional=optional)  # type: ignore[arg-type]


_blocks = _some(
    type=_types,
    text=st.text() | _values,
    id=st.sampled_from(["t1", "t2"]) | _values,
    name=st.just("look") | _values,
    input=st.dictionaries(st.text(max_size=5), _values, max_size=3) | _values,
    tool_use_id=st.sampled_from(["t1", "t2"]) | _values,
    content=st.text() | _values,
    is_error=st.booleans() | _values,
    thinking=st.text() | _values,
    signature=st.text() | _values,
    data=st.text() | _values,
    cache_control=_values,
    citations=_values,
)
_turns = _some(
    role=st.sampled_from(["user", "assistant", "system"]) | _values,
    content=st.text() | st.lists(_blocks, max_size=3) | _values,
)
_bodies = _some(
    model=st.just("m") | _values,
    max_tokens=st.just(16) | _values,
    messages=st.lists(_turns | st.just(HELLO), max_size=4) | _values,
    system=st.text() | st.lists(_blocks, max_size=2) | _values,
    tools=st.lists(
        _some(name=st.just("look") | _values, input_schema=_values, type=_values), max_size=2
    )
    | _values,
    tool_choice=_some(type=st.sampled_from(["auto", "none", "any"])) | _values,
    thinking=_some(type=st.sampled_from(["disabled", "enabled"])) | _values,
    output_config=_values,
    temperature=st.floats(0, 1) | _values,
    top_p=st.floats(0, 1) | _values,
    stop_sequences=st.lists(st.text(), max_size=2) | _values,
    stream=st.booleans() | _values,
    metadata=_values,
)
_likely = _bodies.map(lambda body: {**BODY, **body})


def _holds(body: bytes) -> None:
    """It is understood, and can be recorded; or it is refused, and the refusal can be told."""
    for reader in (WIRE.parse, parse_count_request):
        request = _read(reader, body)
        if isinstance(request, RequestRejected):
            assert 400 <= request.status < 500
            assert json.loads(WIRE.format_error(request))["error"]["message"]
        else:
            assert (
                msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=GenerationRequest)
                == request
            )


def _read(
    reader: Callable[[bytes], GenerationRequest], body: bytes
) -> GenerationRequest | RequestRejected:
    try:
        return reader(body)
    except RequestRejected as message:
        return message


@settings(max_examples=points(125, 500))
@given(_bodies | _likely)
def test_any_object_is_understood_or_refused(body: object) -> None:
    _holds(json.dumps(body).encode())


@settings(max_examples=points(100, 400))
@given(_values)
def test_any_json_is_understood_or_refused(body: object) -> None:
    _holds(json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass"))


@settings(max_examples=points(75, 300))
@given(st.binary())
def test_any_bytes_are_understood_or_refused(body: bytes) -> None:
    _holds(body)


_RICH = json.dumps(
    {
        **BODY,
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [
            HELLO,
            turn("assistant", {"type": "thinking", "thinking": "Hm.", "signature": "s"}, USE),
            turn("user", {"type": "tool_result", "tool_use_id": "t1", "content": "ü"}),
        ],
        "tools": [TOOL],
        "stop_sequences": ["END"],
        "temperature": 0.5,
    },
    ensure_ascii=False,
).encode()


@settings(max_examples=points(175, 700))
@given(st.lists(st.tuples(st.integers(0, len(_RICH)), st.binary(max_size=3)), max_size=3))
def test_any_damage_is_understood_or_refused(damage: list[tuple[int, bytes]]) -> None:
    written = bytearray(_RICH)
    for start, put in damage:
        written[start : start + max(1, len(put))] = put
    _holds(bytes(written))


@settings(max_examples=100)
@given(st.integers(0, len(_RICH)), st.integers(0, len(_RICH)))
def test_any_part_is_understood_or_refused(start: int, end: int) -> None:
    _holds(_RICH[start:end])
