"""The fields of a request to `/v1/messages`: accepted, ignored or rejected.

- Fields that cannot change a sample are ignored: `metadata`, `service_tier`, `speed`,
  `diagnostics`, every `cache_control`, and `citations` that are off.
- Fields that would change the answer and cannot be followed (`container`, `mcp_servers`, …), and
  unknown fields, are rejected by name.
- `null`, an empty list and an empty object are the same as no field.
- `thinking`: `adaptive` lets the model decide; `enabled` sets a budget, if the engine supports it;
  `disabled` is the effort `none`. `between_tools` is rejected. `display` is ignored: reasoning is
  always sent whole, because a client must send back the sampled text.
- `context_management`: edits that keep everything, as Claude Code sends them, change nothing. All
  other edits are rejected.
- `output_config`: `effort` is followed if the model has efforts, and `high` is the default, as
  at Anthropic. `format` is a JSON schema.
"""

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from holdfast.gateway.wires.altering import AlteringFields
from holdfast.gateway.wires.anthropic.errors import from_decode_error, invalid, unknown, unsupported
from holdfast.records.errors import UsageError
from holdfast.records.sampling import NAMED, NO_REASONING, REQUIRED, schema_text

Name = Annotated[str, Meta(min_length=1)]
Options = dict[str, object]
Found = TypeVar("Found")

_EFFORTS = ("low", "medium", "high", "xhigh", "max")


class _Block(Struct, tag_field="type", forbid_unknown_fields=True, frozen=True):
    """A content block, or the source of an image."""


class _Turn(Struct, tag_field="role", forbid_unknown_fields=True, frozen=True):
    """A message of a request."""


class TextBlock(_Block, tag="text", frozen=True):
    text: str
    cache_control: object = None
    citations: list[object] | None = None


class Base64Image(_Block, tag="base64", frozen=True):
    media_type: Annotated[str, Meta(pattern=r"^image/[a-z0-9.+-]+$")]
    data: Name


class UrlImage(_Block, tag="url", frozen=True):
    url: Name


class ImageBlock(_Block, tag="image", frozen=True):
    source: Base64Image | UrlImage
    cache_control: object = None


class ToolUseBlock(_Block, tag="tool_use", frozen=True):
    id: Name
    name: Name
    input: dict[str, object]
    cache_control: object = None
    caller: object = None
    toolset_name: None = None


class ToolResultBlock(_Block, tag="tool_result", frozen=True):
    tool_use_id: Name
    content: str | list[TextBlock | ImageBlock] | None = None
    is_error: bool | None = None
    cache_control: object = None
    toolset_name: None = None


class Thinking(_Block, tag="thinking", frozen=True):
    thinking: str
    signature: str | None = None


class Redacted(_Block, tag="redacted_thinking", frozen=True):
    data: str


AssistantContent = str | list[TextBlock | ToolUseBlock | Thinking | Redacted]


class UserTurn(_Turn, tag="user", frozen=True):
    content: str | list[TextBlock | ImageBlock | ToolResultBlock]
    cache_control: object = None


class AssistantTurn(_Turn, tag="assistant", frozen=True):
    content: AssistantContent
    cache_control: object = None


class SystemTurn(_Turn, tag="system", frozen=True):
    content: str | list[TextBlock]
    cache_control: object = None


Turn = UserTurn | AssistantTurn | SystemTurn


class _Unsupported(AlteringFields, frozen=True, kw_only=True):
    """Fields that are declared only so that they are rejected as unsupported and not as unknown."""

    compaction: object = None
    container: object = None
    context_management: object = None
    fallback_credit_token: object = None
    fallbacks: object = None
    inference_geo: object = None
    mcp_servers: object = None
    thread: object = None


_UNSUPPORTED = tuple(
    name for name in _Unsupported.__struct_fields__ if name not in AlteringFields.__struct_fields__
)


class CountRequest(_Unsupported, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The body of `/v1/messages/count_tokens`."""

    model: Name
    messages: Annotated[list[Turn], Meta(min_length=1)]
    system: str | list[TextBlock] | None = None
    tools: list[dict[str, object]] | None = None
    tool_choice: Options | None = None
    thinking: Options | None = None
    output_config: Options | None = None
    cache_control: object = None
    speed: str | None = None

    @property
    def effort(self) -> str | None:
        if (self.thinking or {}).get("type") == "disabled":
            return NO_REASONING
        effort = (self.output_config or {}).get("effort")
        return None if effort in (None, "high") else str(effort)

    @property
    def thinking_token_budget(self) -> int | None:
        budget = (self.thinking or {}).get("budget_tokens")
        return budget if isinstance(budget, int) else None

    @property
    def json(self) -> bool | str:
        form = (self.output_config or {}).get("format")
        if not isinstance(form, dict):
            return False
        try:
            return schema_text(form["schema"])
        except UsageError as error:
            raise invalid("output_config.format.schema", str(error)) from error


class AnthropicRequest(CountRequest, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The body of `/v1/messages`."""

    max_tokens: Annotated[int, Meta(ge=1, lt=2**31)]
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    metadata: dict[str, object] | None = None
    service_tier: str | None = None
    diagnostics: object = None


_requests = msgspec.json.Decoder(AnthropicRequest)
_counts = msgspec.json.Decoder(CountRequest)


def parse_request(body: bytes) -> AnthropicRequest:
    """Returns the request of a body. Raises `RequestRejected` if the body is malformed, has unknown
    fields, or needs something that cannot be done."""
    request = _decode(_requests, body)
    _check(request)
    for number, stop in enumerate(request.stop_sequences or ()):
        if not stop.strip():
            raise invalid(
                f"stop_sequences.{number}", "a stop sequence must hold more than white space"
            )
    # The answer would have to begin inside the last message, which no template supports.
    if isinstance(request.messages[-1], AssistantTurn):
        raise invalid(
            "messages",
            "This model does not support assistant message prefill. "
            "The conversation must end with a user message.",
        )
    return request


def parse_count_request(body: bytes) -> CountRequest:
    """Returns the request of a body to count tokens. Raises `RequestRejected` like
    `parse_request`."""
    count_request = _decode(_counts, body)
    _check(count_request)
    return count_request


def _decode(decoder: msgspec.json.Decoder[Found], body: bytes) -> Found:
    try:
        return decoder.decode(body)
    except RecursionError as deep:
        raise invalid("", "The request body is nested too deeply") from deep
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise from_decode_error(error) from error


def _check(count_request: CountRequest) -> None:
    for name in _UNSUPPORTED:
        sent = getattr(count_request, name)
        if sent not in (None, [], {}) and not (name == "context_management" and _keeps_all(sent)):
            raise unsupported(name)
    _check_thinking(count_request.thinking or {})
    _check_output(count_request.output_config or {})


def _keeps_all(management: object) -> bool:
    """Returns whether every edit keeps the whole conversation."""
    if not isinstance(management, dict) or set(management) != {"edits"}:
        return False
    edits = management["edits"]
    return isinstance(edits, list) and all(
        isinstance(edit, dict) and edit.get("keep") == "all" for edit in edits
    )


def _check_thinking(thinking: Options) -> None:
    kind = thinking.get("type")
    if thinking and kind not in ("enabled", "disabled", "adaptive"):
        raise unsupported("thinking.type", 'use "adaptive", "enabled" or "disabled"')
    if kind != "enabled":
        _check_known(thinking, ("type", "display"), "thinking")
        return
    _check_known(thinking, ("type", "display", "budget_tokens"), "thinking")
    budget = thinking.get("budget_tokens")
    if type(budget) is not int or not 1 <= budget < 2**31:
        raise invalid("thinking.budget_tokens", "Input should be an integer greater than 0")


def _check_output(output: Options) -> None:
    _check_known(output, ("effort", "format"), "output_config")
    if output.get("effort") not in (None, *_EFFORTS):
        raise invalid("output_config.effort", f"Input should be {', '.join(_EFFORTS)}")
    if (form := output.get("format")) is not None:
        _check_format(form)


def _check_format(form: object) -> None:
    where = "output_config.format"
    if not isinstance(form, dict):
        raise invalid(where, "Input should be a valid dictionary")
    _check_known(form, ("type", "schema"), where)
    if form.get("type") != "json_schema":
        raise unsupported(f"{where}.type", 'use "json_schema"')
    if not isinstance(form.get("schema"), dict):
        raise invalid(f"{where}.schema", "Input should be a valid dictionary")


def _check_known(sent: Options, known: tuple[str, ...], where: str) -> None:
    for name in sent:
        if name not in known:
            raise unknown(f"{where}.{name}")


_MAX_DEPTH = 64
_INTEGERS = range(-(2**63), 2**64)


class AnthropicTool(Struct, forbid_unknown_fields=True, frozen=True):
    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]
    input_schema: dict[str, object]
    description: str | None = None
    type: str | None = None
    cache_control: object = None
    eager_input_streaming: object = None
    allowed_callers: list[str] | None = None
    defer_loading: bool | None = None
    input_examples: list[object] | None = None
    strict: bool | None = None


def tool_schemas(request: CountRequest) -> tuple[dict[str, object], ...]:
    """Returns the tools in the format of chat completions. Returns no tools if the model may not
    call any."""
    schemas = tuple(
        _schema(tool, f"tools.{number}") for number, tool in enumerate(request.tools or ())
    )
    names = [tool["name"] for tool in request.tools or ()]
    if len(set(names)) != len(names):
        raise invalid("tools", "Tool names must be unique.")
    return () if (request.tool_choice or {}).get("type") == "none" else schemas


def forced_tool(request: CountRequest) -> str:
    """Returns the value for `Sampling.tool_choice`. Raises `RequestRejected`."""
    choice = request.tool_choice or {}
    kind, name = choice.get("type", "auto"), choice.get("name")
    if kind in ("auto", "none"):
        return ""
    if kind == "any" and request.tools:
        return REQUIRED
    if kind == "tool" and name in [tool["name"] for tool in request.tools or ()]:
        return f"{NAMED}{name}"
    if kind in ("any", "tool"):
        raise invalid("tool_choice", "there is no such tool in `tools`")
    raise unsupported("tool_choice.type", 'use "auto", "any", "tool" or "none"')


def is_parallel(request: CountRequest) -> bool:
    """Returns whether a reply may make several calls."""
    return (request.tool_choice or {}).get("disable_parallel_tool_use") in (None, False)


def _schema(sent: dict[str, object], where: str) -> dict[str, object]:
    kind = sent.get("type")
    if kind not in (None, "custom"):
        raise unsupported(f"{where}.type", f"{kind!r} is not a tool that the client runs")
    try:
        tool = msgspec.convert(sent, AnthropicTool)
    except msgspec.ValidationError as error:
        raise from_decode_error(error, under=where) from error
    _check_tool(tool, where)
    _check_bounds(tool.input_schema, f"{where}.input_schema")
    function: dict[str, object] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.input_schema
    return {"type": "function", "function": function}


def _check_tool(tool: AnthropicTool, where: str) -> None:
    unsupported_fields = {
        "strict": tool.strict,
        "defer_loading": tool.defer_loading,
        "input_examples": tool.input_examples,
        "allowed_callers": tool.allowed_callers not in (None, ["direct"]),
    }
    for name, is_set in unsupported_fields.items():
        if is_set:
            raise unsupported(f"{where}.{name}")


def _check_bounds(value: object, where: str, depth: int = 0) -> None:
    """Raises `RequestRejected` for a schema that is nested too deeply or has numbers that cannot be
    stored, since schemas are recorded and rendered."""
    if depth > _MAX_DEPTH:
        raise invalid(where, f"nested more than {_MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            _check_bounds(item, where, depth + 1)
    elif type(value) is int and value not in _INTEGERS:
        raise invalid(where, "an integer needs more than 64 bits")
