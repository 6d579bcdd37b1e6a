"""Finds the parts of a request that the policy cannot follow. They are rejected or, if the gateway
is configured so, removed.

Nothing is removed silently: the names of removed fields are in the call's record and in the log.
The content of a conversation is never touched, but members of its messages that are not content can
be named (`messages.foo`). A rejection names the parameter as its wire does. If the gateway could
ignore the parameter, the rejection says how.

A request that its wire does not fully know is parsed once more without its nulls. Libraries send
answers back with members of their own added, and members that are null never change what is
sampled.
"""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

import msgspec
from msgspec import Raw, structs

from holdfast.gateway.protocol.messages import (
    GenerationRequest,
    RequestLookup,
    RequestRejected,
    Wire,
)
from holdfast.policy.rendering.messages_only import MessagesOnly
from holdfast.policy.rendering.renderer import Renderer
from holdfast.records.encoding.redaction import redact
from holdfast.records.errors import IMAGES, BadRequest, Unsupported, UsageError
from holdfast.records.sampling import NO_REASONING

MESSAGES = "/v1/messages"
TOOL = "tool:"
_PARAMETER = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*")
_PATTERN = re.compile(r"[A-Za-z0-9_.*?-]+")
_KIND = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_CONVERSATION = ("messages", "input", "prompt", "suffix", "system", "instructions")
_CONTENT = frozenset(
    (
        *("role", "content", "text", "type", "id", "name", "input", "output", "refusal"),
        *("tool_calls", "tool_call_id", "call_id", "tool_use_id", "function", "arguments"),
        *("image_url", "input_audio", "file", "source", "reasoning", "reasoning_content"),
        *("thinking", "summary", "item_reference"),
    )
)
"""The members of a message that are its content. Any other member can be removed."""
_SEPARATORS = re.compile(r"[.\[\]]+")
_REFERENCES = ("previous_response_id", "conversation")
"""Fields that stand for earlier messages. Without them, the request's own messages would count as
the whole conversation."""
_ALWAYS = frozenset((*_CONVERSATION, *_REFERENCES, "model", "tools", "functions", "stream"))
"""Fields that are never removed, because the request would have another meaning without them."""
_OWN: dict[str, tuple[object, ...]] = {MESSAGES: (None, "custom")}
"""For each wire, the types of tools that a client runs itself. Such tools are never removed."""
_REQUIRED = {MESSAGES: "max_tokens"}
"""For each wire, a parameter that the provider requires. If it is in the ignored fields, it is
still parsed, but has no effect."""
_VERBATIM = ("functions", "metadata", "output_config", "response_format", "text", "tools")
"""Members that hold schemas, in which null is a value."""
_MAX_TOOL_SETS = 8
_OBJECT = msgspec.json.Decoder(dict[str, Raw])
_TOOLS = msgspec.json.Decoder(list[dict[str, object]])


class IgnoredFields:
    """The fields that the gateway removes from requests.

    `names` has the names of parameters (`seed`, `text.verbosity`), members of messages
    (`messages.foo`, `input.foo`), and types of tools (`tool:web_search`; `tool:*` for all tools
    that the client does not run itself).
    """

    def __init__(self, names: Iterable[str] = ()):
        if isinstance(names, str):
            raise UsageError(f"ignore is a list of names: [{names[:100]!r}]")
        listed: list[object] = list(names)
        if wrong := [name for name in listed if not isinstance(name, str)]:
            raise UsageError(f"ignore is a list of names, and {wrong[0]!r} is none")
        self.names = tuple(dict.fromkeys(name for name in listed if isinstance(name, str)))
        for name in self.names:
            _check(name)
        self._paths = [name.split(".") for name in self.names if not name.startswith(TOOL)]
        self._kinds = [name.removeprefix(TOOL) for name in self.names if name.startswith(TOOL)]
        self._seen: dict[tuple[str, bytes], tuple[Raw, tuple[str, ...]]] = {}

    def parse(
        self, path: str, wire: Wire, body: bytes, *, known: RequestLookup | None = None
    ) -> GenerationRequest:
        """Returns the request without these fields. Raises `RequestRejected` as the wire does."""
        rest, ignored = self.strip(path, body)
        try:
            request = _parse_leniently(wire, rest, known)
        except RequestRejected as rejection:
            raise with_remedy(rejection) from None
        if _REQUIRED.get(path) in ignored:
            request = structs.replace(request, max_tokens=None)
        return structs.replace(request, ignored=ignored) if ignored else request

    def strip(self, path: str, body: bytes) -> tuple[bytes, tuple[str, ...]]:
        """Returns the body without these fields, and the names of the removed fields. A body that
        is not an object is returned unchanged, because its wire rejects it."""
        if not self.names:
            return body, ()
        try:
            members = _OBJECT.decode(body)
            removed = [".".join(names) for names in self._paths if _remove(members, names, path)]
            removed += self._strip_tools(path, members) if self._kinds else ()
        except (ValueError, RecursionError):
            return body, ()
        return (msgspec.json.encode(members), tuple(removed)) if removed else (body, ())

    def _strip_tools(self, path: str, members: dict[str, Raw]) -> tuple[str, ...]:
        sent = members.get("tools")
        if sent is None or _is_null(sent):
            return ()
        # An agent sends the same tools with every call.
        stripped = self._seen.get((path, bytes(sent)))
        if stripped is None:
            stripped = self._seen[path, bytes(sent)] = self._select(path, sent)
            if len(self._seen) > _MAX_TOOL_SETS:
                self._seen.pop(next(iter(tuple(self._seen))), None)
        members["tools"] = stripped[0]
        return stripped[1]

    def _select(self, path: str, sent: Raw) -> tuple[Raw, tuple[str, ...]]:
        tools = _TOOLS.decode(sent)
        own = _OWN.get(path, ("function",))
        removed = {at: name for at, tool in enumerate(tools) if (name := self._name(tool, own))}
        if not removed:
            return sent, ()
        kept = [tool for at, tool in enumerate(tools) if at not in removed]
        return Raw(msgspec.json.encode(kept)), tuple(dict.fromkeys(removed.values()))

    def _name(self, tool: dict[str, object], own: tuple[object, ...]) -> str:
        """Returns the name by which a tool is removed, or "" if the tool stays."""
        kind = tool.get("type")
        if kind in own or not isinstance(kind, str):
            return ""
        pattern = next((pattern for pattern in self._kinds if fnmatchcase(kind, pattern)), "")
        # Records and logs contain at most a name of what the client sent.
        return pattern and TOOL + (kind if _KIND.fullmatch(kind) else pattern)


def with_remedy(rejection: RequestRejected) -> RequestRejected:
    """Returns the rejection. If the gateway could ignore the rejected parameter, the message says
    how."""
    parts = _SEPARATORS.split(rejection.param or "")
    name = ".".join(part for part in parts if not part.isdigit())
    if not rejection.is_unsupported or not _PARAMETER.fullmatch(name):
        return rejection
    # An object without a type is invalid.
    name = TOOL + "*" if name == "tools.type" else name.removesuffix(".type")
    try:
        _check(name)
    except UsageError:
        return rejection
    end = "" if rejection.message.endswith((".", "…")) else "."
    return RequestRejected(
        rejection.status,
        f"{rejection.message}{end} The gateway can leave it out: "
        f'ignore=["{name}"] (--ignore {name}).',
        kind=rejection.kind,
        param=rejection.param,
        code=rejection.code,
    )


def _check(name: str) -> None:
    if name == TOOL + "function":
        raise UsageError(f"{name!r} cannot be ignored: a function is run by the agent itself")
    if name.startswith(TOOL) and _PATTERN.fullmatch(name.removeprefix(TOOL)):
        return
    if not _PARAMETER.fullmatch(name):
        raise UsageError(
            f"{name[:100]!r} cannot be ignored: name a parameter, like seed or text.verbosity, or "
            "a type of tools, like tool:web_search or tool:*"
        )
    first, dot, rest = name.partition(".")
    if first in _CONVERSATION and dot and rest.rpartition(".")[2] not in _CONTENT:
        return
    if first in _ALWAYS and not (first == "tools" and dot):
        hint = "; name types, like tool:web_search" if first == "tools" else ""
        raise UsageError(f"{name!r} cannot be ignored: a request is nothing without it{hint}")


def _is_null(sent: Raw) -> bool:
    view = memoryview(sent)
    return len(view) == 4 and bytes(view) == b"null"


def _remove(members: dict[str, Raw], names: list[str], path: str) -> bool:
    """Removes a parameter and returns whether it was there. Null counts as absent."""
    first, *rest = names
    sent = members.get(first)
    if sent is None or _is_null(sent):
        return False
    if not rest:
        if _REQUIRED.get(path) != first:
            del members[first]
        return True
    value = msgspec.json.decode(sent)
    if not _remove_within(value, rest):
        return False
    members[first] = Raw(msgspec.json.encode(value))
    return True


def _remove_within(value: object, names: list[str]) -> bool:
    """Removes a nested member and returns whether it was there. In a list, removes it from each
    element."""
    if isinstance(value, list):
        return sum(_remove_within(element, names) for element in value) > 0
    if not isinstance(value, dict) or value.get(names[0]) is None:
        return False
    if len(names) > 1:
        return _remove_within(value[names[0]], names[1:])
    del value[names[0]]
    return True


def _parse_leniently(wire: Wire, body: bytes, known: RequestLookup | None) -> GenerationRequest:
    try:
        return wire.parse(body, known)
    except RequestRejected as rejection:
        lean = _without_nulls(body) if rejection.is_unknown else body
        if lean == body:
            raise
    return wire.parse(lean, known)


def _without_nulls(body: bytes) -> bytes:
    try:
        return msgspec.json.encode(_lean(msgspec.json.decode(body)))
    except (ValueError, RecursionError):
        return body


def _lean(value: object) -> object:
    if isinstance(value, list):
        return [_lean(element) for element in value]
    if not isinstance(value, dict):
        return value
    return {
        name: member if _is_verbatim(name, member) else _lean(member)
        for name, member in value.items()
        if member is not None
    }


def _is_verbatim(name: str, value: object) -> bool:
    """Returns whether a value must not be changed, such as the arguments of a call in an `input`
    that is an object."""
    return (name in _VERBATIM and not isinstance(value, str)) or (
        name == "input" and isinstance(value, dict)
    )


_NAMES: dict[str, dict[str, str]] = {
    "/v1/responses": {"json": "text.format", "reasoning_effort": "reasoning.effort"},
    "/v1/messages": {
        "json": "output_config.format",
        "reasoning_effort": "output_config.effort",
        "thinking_token_budget": "thinking",
        "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    },
}
_USUAL = {"json": "response_format"}


def check_supported(request: GenerationRequest, renderer: Renderer) -> None:
    """Raises `RequestRejected` if the answer cannot have the requested form."""
    if request.token_ids and isinstance(renderer, MessagesOnly):
        raise _unsupported("return_token_ids", "its engine tells no token ids")


def rejection_of(error: Exception, request: GenerationRequest, wire: str) -> RequestRejected | None:
    """Returns the rejection for an error that the agent's own request caused, or None for other
    errors. No step is recorded, and the agent can repeat the call without the rejected parameter.
    """
    if isinstance(error, Unsupported):
        return _unsupported(_param(error.what, request, wire), error.why)
    if isinstance(error, BadRequest) and (option := _engine_option(request)):
        # The engine's error names its own option, so the agent's name for it is looked up.
        param = _param(option, request, wire)
        rejection = RequestRejected(400, f"Invalid '{param}': {redact(error.reason)}", param=param)
        rejection.is_unsupported = True
        return with_remedy(rejection)
    return None


def _param(option: str, request: GenerationRequest, wire: str) -> str:
    """Returns the request's own name for a field of `Sampling`, or for `images`."""
    if option == IMAGES:
        return request.image_param or _image_param(request)
    if wire == "/v1/messages" and request.reasoning_effort == NO_REASONING:
        # `/v1/messages` has no effort of that name: the client set `thinking`.
        option = option.replace("reasoning_effort", "thinking_token_budget")
    return _NAMES.get(wire, _USUAL).get(option, option)


def _image_param(request: GenerationRequest) -> str:
    """Returns the name of the first image's message in requests with a list of messages, such as
    chat completions."""
    images = (at for at, message in enumerate(request.messages) if message.images)
    at = next(images, None)
    return "messages" if at is None else f"messages[{at}].content"


def _unsupported(param: str, why: str) -> RequestRejected:
    message = f"Unsupported parameter: '{param}' is not supported with this model: {why}"
    rejection = RequestRejected(400, message, param=param, code="unsupported_parameter")
    rejection.is_unsupported = True
    return with_remedy(rejection)


def _engine_option(request: GenerationRequest) -> str:
    """Returns the first option of the request that some engines lack, or "" if there is none."""
    options = {
        IMAGES: any(message.images for message in request.messages),
        "json": request.json is not False,
        "tool_choice": bool(request.tool_choice),
        "parallel_tool_calls": not request.parallel_tool_calls,
        "top_k": bool(request.top_k),
        "thinking_token_budget": request.thinking_token_budget is not None,
        "reasoning_effort": bool(request.reasoning_effort),
        "chat_template_kwargs": bool(request.chat_template_kwargs),
        **{name: bool(value) for name, value in structs.asdict(request.altering).items()},
    }
    return next((name for name, is_set in options.items() if is_set), "")
