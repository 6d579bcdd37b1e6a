"""Ignoring: what is taken out of every request before it is read, by the wish of whoever runs the
gateway.

What a policy cannot follow is refused, unless it is named here. Nothing is taken out in silence:
the names of what was are in the call's record and in the log. What a conversation
says is never touched; members of its messages that say nothing can be named (`messages.foo`).
"""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

import msgspec
from msgspec import Raw, structs

from holdfast.gateway.calls import lenient
from holdfast.gateway.protocol.messages import Ask, Known, RequestRejected, Wire
from holdfast.records.errors import UsageError

MESSAGES = "/v1/messages"
TOOL = "tool:"
_PARAMETER = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*")
_PATTERN = re.compile(r"[A-Za-z0-9_.*?-]+")
_KIND = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SAID = ("messages", "input", "prompt", "suffix", "system", "instructions")
_WORDS = frozenset(
    (
        *("role", "content", "text", "type", "id", "name", "input", "output", "refusal"),
        *("tool_calls", "tool_call_id", "call_id", "tool_use_id", "function", "arguments"),
        *("image_url", "input_audio", "file", "source", "reasoning", "reasoning_content"),
        *("thinking", "summary", "item_reference"),
    )
)
"""What a message says; anything else in it can be left out."""
_PARTS = re.compile(r"[.\[\]]+")
_BEFORE = ("previous_response_id", "conversation")
"""In place of what was said before. Without it, the rest would be sampled from as if it was all."""
_ALWAYS = frozenset((*_SAID, *_BEFORE, "model", "tools", "functions", "stream"))
"""Without these, a request is another, or none."""
_OWN: dict[str, tuple[object, ...]] = {MESSAGES: (None, "custom")}
"""The types of tools that a client runs itself; those are never taken out."""
_REQUIRED = {MESSAGES: "max_tokens"}
"""What a provider insists on is read, and then not followed."""
_KEPT = 8
_OBJECT = msgspec.json.Decoder(dict[str, Raw])
_TOOLS = msgspec.json.Decoder(list[dict[str, object]])


class Ignoring:
    """`names`: parameters, as refusals name them (`seed`, `text.verbosity`), members of messages
    (`messages.foo`, `input.foo`), and types of tools (`tool:web_search`; `tool:*` for all that the
    client does not run itself)."""

    def __init__(self, names: Iterable[str] = ()):
        if isinstance(names, str):
            raise UsageError(f"ignore is a list of names: [{names[:100]!r}]")
        given: list[object] = list(names)
        if wrong := [one for one in given if not isinstance(one, str)]:
            raise UsageError(f"ignore is a list of names, and {wrong[0]!r} is none")
        self.names = tuple(dict.fromkeys(one for one in given if isinstance(one, str)))
        for name in self.names:
            _check(name)
        self._paths = [one.split(".") for one in self.names if not one.startswith(TOOL)]
        self._kinds = [one.removeprefix(TOOL) for one in self.names if one.startswith(TOOL)]
        self._seen: dict[tuple[str, bytes], tuple[Raw, tuple[str, ...]]] = {}

    def ask(self, path: str, wire: Wire, body: bytes, *, known: Known | None = None) -> Ask:
        """What the wire reads of the rest. Raises `RequestRejected` as it does."""
        rest, ignored = self.without(path, body)
        try:
            ask = lenient.ask(wire, rest, known)
        except RequestRejected as refused:
            raise with_way_out(refused) from None
        if _REQUIRED.get(path) in ignored:
            ask = structs.replace(ask, max_tokens=None)
        return structs.replace(ask, ignored=ignored) if ignored else ask

    def without(self, path: str, body: bytes) -> tuple[bytes, tuple[str, ...]]:
        """The rest of a body, and the names of what is gone. A body that is no object is left to
        whoever refuses it."""
        if not self.names:
            return body, ()
        try:
            members = _OBJECT.decode(body)
            gone = [".".join(one) for one in self._paths if _taken(members, one, path)]
            gone += self._tools(path, members) if self._kinds else ()
        except (ValueError, RecursionError):
            return body, ()
        return (msgspec.json.encode(members), tuple(gone)) if gone else (body, ())

    def _tools(self, path: str, members: dict[str, Raw]) -> tuple[str, ...]:
        sent = members.get("tools")
        if sent is None or _is_null(sent):
            return ()
        # An agent shows the same ones with every call.
        found = self._seen.get((path, bytes(sent)))
        if found is None:
            found = self._seen[path, bytes(sent)] = self._chosen(path, sent)
            if len(self._seen) > _KEPT:
                del self._seen[next(iter(self._seen))]
        members["tools"] = found[0]
        return found[1]

    def _chosen(self, path: str, sent: Raw) -> tuple[Raw, tuple[str, ...]]:
        tools = _TOOLS.decode(sent)
        own = _OWN.get(path, ("function",))
        gone = {n: name for n, one in enumerate(tools) if (name := self._name(one, own))}
        if not gone:
            return sent, ()
        kept = [one for n, one in enumerate(tools) if n not in gone]
        return Raw(msgspec.json.encode(kept)), tuple(dict.fromkeys(gone.values()))

    def _name(self, tool: dict[str, object], own: tuple[object, ...]) -> str:
        """By which it is taken out; "" if it stays."""
        kind = tool.get("type")
        if kind in own or not isinstance(kind, str):
            return ""
        pattern = next((one for one in self._kinds if fnmatchcase(kind, one)), "")
        # Whatever a client sends, no record and no log holds more than a name.
        return pattern and TOOL + (kind if _KIND.fullmatch(kind) else pattern)


def with_way_out(refused: RequestRejected) -> RequestRejected:
    """The refusal; where what it is about can be left out, it says how."""
    name = ".".join(part for part in _PARTS.split(refused.param or "") if not part.isdigit())
    if not refused.is_unsupported or not _PARAMETER.fullmatch(name):
        return refused
    # An object without its type is none.
    name = TOOL + "*" if name == "tools.type" else name.removesuffix(".type")
    try:
        _check(name)
    except UsageError:
        return refused
    said = refused.message if refused.message.endswith((".", "…")) else f"{refused.message}."
    words = f'{said} The gateway can leave it out: ignore=["{name}"] (--ignore {name}).'
    return RequestRejected(
        refused.status, words, kind=refused.kind, param=refused.param, code=refused.code
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
    if first in _SAID and dot and rest.rpartition(".")[2] not in _WORDS:
        return
    if first in _ALWAYS and not (first == "tools" and dot):
        hint = "; name types, like tool:web_search" if first == "tools" else ""
        raise UsageError(f"{name!r} cannot be ignored: a request is nothing without it{hint}")


def _is_null(sent: Raw) -> bool:
    view = memoryview(sent)
    return len(view) == 4 and bytes(view) == b"null"


def _taken(members: dict[str, Raw], names: list[str], path: str) -> bool:
    """Takes a parameter out; whether it was there. Null is as good as nothing."""
    first, *rest = names
    sent = members.get(first)
    if sent is None or _is_null(sent):
        return False
    if not rest:
        if _REQUIRED.get(path) != first:
            del members[first]
        return True
    value = msgspec.json.decode(sent)
    if not _taken_within(value, rest):
        return False
    members[first] = Raw(msgspec.json.encode(value))
    return True


def _taken_within(value: object, names: list[str]) -> bool:
    """Of a list: out of each of its elements."""
    if isinstance(value, list):
        return sum(_taken_within(one, names) for one in value) > 0
    if not isinstance(value, dict) or value.get(names[0]) is None:
        return False
    if len(names) > 1:
        return _taken_within(value[names[0]], names[1:])
    del value[names[0]]
    return True
