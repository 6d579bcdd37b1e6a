"""Checks the messages and tools of chat completions, and converts them to records.

The content of a message becomes one string: parts of text are joined, and missing content is the
empty string. So a turn is the same message however a library sends it back. Only a message with
images keeps its parts.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from msgspec import Struct

from holdfast.gateway.protocol.messages import shorten
from holdfast.gateway.wires.altering import WRONG_URL, is_image_url
from holdfast.gateway.wires.openai.errors import convert, invalid, unsupported_value
from holdfast.gateway.wires.openai.parameters import Text, neutral, reject_unless_neutral
from holdfast.records.message import (
    IMAGE,
    FunctionCall,
    Message,
    Role,
    ToolCall,
    content_of,
    image,
)
from holdfast.records.sampling import NAMED, REQUIRED

_MAX_DEPTH = 100
"""Levels of a tool's schema: with more, the renderer runs out of stack."""


class _Echoed(Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields that libraries add to a message and send back. They do not change samples."""

    cache_control: object = None
    provider_specific_fields: object = None


class _TextPart(_Echoed, tag="text", tag_field="type", forbid_unknown_fields=True):
    text: str
    prompt_cache_breakpoint: object = None


class _ImageUrl(Struct, forbid_unknown_fields=True):
    url: Text
    detail: str | None = None


class _ImagePart(_Echoed, tag="image_url", tag_field="type", forbid_unknown_fields=True):
    image_url: _ImageUrl | Text


class _Audio(Struct, tag="input_audio", tag_field="type"):
    """A part with audio. It is always rejected."""


class _Video(Struct, tag="video_url", tag_field="type"):
    """A part with a video. It is always rejected."""


class _File(Struct, tag="file", tag_field="type"):
    """A part with a file. It is always rejected."""


class _Refusal(Struct, tag="refusal", tag_field="type"):
    """A part with a refusal. It is always rejected."""


_Part = _TextPart | _ImagePart | _Audio | _Video | _File | _Refusal
_Content = str | list[_Part]


class _Spoken(_Echoed, tag_field="role", forbid_unknown_fields=True):
    content: _Content
    name: str | None = None


class _System(_Spoken, tag="system"):
    pass


class _Developer(_Spoken, tag="developer"):
    pass


class _User(_Spoken, tag="user"):
    pass


class _Called(_Echoed, forbid_unknown_fields=True):
    name: Text
    arguments: str


class _Call(_Echoed, forbid_unknown_fields=True):
    id: Text
    function: _Called
    type: Literal["function"] = "function"
    index: int | None = None
    """Some libraries that join a call from a stream leave this field in the call."""


class _Assistant(_Echoed, tag="assistant", tag_field="role", forbid_unknown_fields=True):
    # An empty reply comes back from libraries as null.
    content: _Content | None = None
    name: str | None = None
    tool_calls: list[_Call] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    # The same reasoning as a provider's blocks, which only the provider can read.
    reasoning_details: object = None
    thinking_blocks: object = None
    # Fields of a response that a library sends back.
    refusal: object = neutral()
    annotations: object = None
    images: object = neutral([])
    audio: object = neutral()
    function_call: object = neutral(why="it is deprecated; use 'tools' and 'tool_choice'.")


class _Tool(_Spoken, tag="tool", kw_only=True):
    tool_call_id: Text


RequestMessage = _System | _Developer | _User | _Assistant | _Tool
"""A message of a request."""

_ROLES = {_System: Role.SYSTEM, _Developer: Role.DEVELOPER, _User: Role.USER}


def parse_messages(message: Sequence[RequestMessage]) -> tuple[Message, ...]:
    return tuple(_message(item, f"messages[{place}]") for place, item in enumerate(message))


def _message(message: RequestMessage, at: str) -> Message:
    if isinstance(message, _Assistant):
        return _assistant(message, _text(message.content, at), at=at)
    if isinstance(message, _Tool):
        content = _content(message.content, at)
        return Message(Role.TOOL, content, tool_call_id=message.tool_call_id, name=message.name)
    read = _content if isinstance(message, _User) else _text
    return Message(_ROLES[type(message)], read(message.content, at), name=message.name)


def _assistant(message: _Assistant, content: str, *, at: str) -> Message:
    reject_unless_neutral(message, at=f"{at}.")
    reasonings = {item for item in (message.reasoning, message.reasoning_content) if item}
    if len(reasonings) > 1:
        text = f"'{at}' has both 'reasoning' and 'reasoning_content', and they differ; send one."
        raise invalid(text, param=f"{at}.reasoning")
    return Message(
        Role.ASSISTANT,
        content,
        tool_calls=tuple(
            ToolCall(call.id, FunctionCall(call.function.name, call.function.arguments))
            for call in message.tool_calls or ()
        ),
        name=message.name,
        reasoning=reasonings.pop() if reasonings else None,
    )


def _content(content: _Content | None, at: str) -> str | list[dict[str, object]]:
    if content is None or isinstance(content, str):
        return content or ""
    if not content:
        raise invalid(f"Invalid '{at}.content': empty array.", param=f"{at}.content")
    return content_of(_part(part, f"{at}.content[{place}]") for place, part in enumerate(content))


def _text(content: _Content | None, at: str) -> str:
    """Returns the content of a message that must not contain images."""
    for place, part in enumerate(content) if isinstance(content, list) else ():
        if isinstance(part, _ImagePart):
            why = "only messages of users and tools hold images; send parts of type text."
            raise unsupported_value(f"{at}.content[{place}].type", IMAGE, why)
    text = _content(content, at)
    assert isinstance(text, str), "it holds no images"
    return text


def _part(part: _Part, at: str) -> str | dict[str, object]:
    if isinstance(part, _TextPart):
        return part.text
    if not isinstance(part, _ImagePart):
        why = "it is read by no engine; send parts of type text or image_url."
        raise unsupported_value(f"{at}.type", part.__struct_config__.tag, why)
    sent = part.image_url
    url, detail = (sent, None) if isinstance(sent, str) else (sent.url, sent.detail)
    if not is_image_url(url):
        raise invalid(f"Invalid '{at}.image_url': {WRONG_URL}", param=f"{at}.image_url")
    return image(url, detail=detail)


_HIDDEN = ("strict", "cache_control")


class _Function(Struct, forbid_unknown_fields=True):
    name: Text
    description: str | None = None
    parameters: dict[str, object] | None = None
    strict: bool | None = None
    cache_control: object = None


class _FunctionTool(Struct, tag="function", tag_field="type", forbid_unknown_fields=True):
    function: _Function
    cache_control: object = None


def parse_tools(tools: Sequence[dict[str, object]]) -> tuple[dict[str, object], ...]:
    """Returns the tools with their members in the order in which they were sent, without `strict`
    and hints to a cache.

    `strict` asks for constrained sampling of arguments, which does not exist here: arguments are
    the text that the model wrote. Libraries set it on every tool, and a model must not read it.
    """
    if not all(_is_shallow(tool) for tool in tools):
        raise invalid(f"'tools' is nested deeper than {_MAX_DEPTH} levels.", param="tools")
    convert(tools, list[_FunctionTool], root="tools")
    return tuple(_for_model(tool) for tool in tools)


def _for_model(tool: dict[str, object]) -> dict[str, object]:
    function = tool["function"]
    assert isinstance(function, dict)
    kept = {name: value for name, value in function.items() if name not in _HIDDEN}
    members = ((name, value) for name, value in tool.items() if name not in _HIDDEN)
    return {name: kept if name == "function" else value for name, value in members}


def _is_shallow(value: object) -> bool:
    level: list[object] = [value]
    for _ in range(_MAX_DEPTH):
        level = [inner for item in level for inner in _inner(item)]
        if not level:
            return True
    return False


def _inner(value: object) -> Iterator[object]:
    members: Iterable[object] = ()
    if isinstance(value, dict):
        members = value.values()
    elif isinstance(value, list):
        members = value
    return (member for member in members if isinstance(member, dict | list))


Tools = Sequence[dict[str, object]]


def parse_tool_choice(choice: str | dict[str, object] | None, tools: Tools) -> str | None:
    """Returns the value for `Sampling.tool_choice`, or None if the model must call no tool (its
    prompt then has no tools). Used for chat completions and responses. Raises `RequestRejected`."""
    if choice in (None, "auto"):
        return ""
    if choice == "none":
        return None
    if choice == REQUIRED:
        if not tools:
            raise invalid(
                "'tool_choice' is 'required', and there are no tools.", param="tool_choice"
            )
        return REQUIRED
    name = _function(choice) if isinstance(choice, dict) else None
    if name is None:
        why = "send 'auto', 'none', 'required' or a function."
        raise unsupported_value("tool_choice", choice, why)
    if name not in tool_names(tools):
        text = f"Tool choice '{shorten(name)}' not found in 'tools'."
        raise invalid(text, param="tool_choice")
    return NAMED + name


def tool_names(tools: Tools) -> list[object]:
    functions = (tool["function"] for tool in tools)
    return [function["name"] for function in functions if isinstance(function, dict)]


def _function(choice: dict[str, object]) -> str | None:
    if choice.get("type") != "function":
        return None
    inner = choice.get("function", choice)
    name = inner.get("name") if isinstance(inner, dict) else None
    return name if isinstance(name, str) and name else None
