"""Made at start: which variables are set to what is another one at each start of the program.

A time, a process id, an id that is drawn: by how they are made, since not all of them can be told
by what they are (see `starts`). What is made of such a value and of something else (`f"{prompt} It
is {now()}."`) counts by its text, without what can be told; but a random part cannot be, so that a
name that has one does not count.
"""

import ast
import functools
from collections.abc import Iterable, Iterator
from enum import Enum, auto
from types import FunctionType

from holdfast.rollout.code.definitions import (
    Definition,
    Subject,
    all_nodes,
    definitions_in,
    nodes_of,
    remembered,
    text_of,
)

_CLOCKS = frozenset(
    (
        *("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"),
        *("now", "utcnow", "today", "gmtime", "localtime", "ctime", "asctime"),
        *("mkdtemp", "mkstemp", "mktemp", "NamedTemporaryFile", "TemporaryDirectory"),
    )
)
"""What gives another value at each start, most often one that is known by what it is."""
_DRAWING = frozenset(
    (
        *("getpid", "token_hex", "token_bytes", "token_urlsafe", "urandom"),
        *("getrandbits", "randbytes", "uuid1", "uuid4"),
    )
)
"""The same, and nobody knows it from another."""
_TURNING = frozenset({"str", "int", "float", "round", "Path", "strftime", "isoformat", "hex"})
"""What makes a text or a number of it."""


class _Made(Enum):
    """How a value is made."""

    CONSTANT = auto()
    AT_START = auto()
    DRAWN = auto()
    OTHERWISE = auto()


def made_at_start(subject: Subject) -> frozenset[str]:
    """Names of variables around a function, and `.name` of a class's attributes."""
    return remembered("start", subject, 0, _find)


def _find(subject: Subject, _: int) -> frozenset[str]:
    found: Iterable[Definition] = nodes_of(subject)
    also = _giving(text_of(subject))
    if isinstance(subject, FunctionType):
        inner = list(found)
        found = [each for each in all_nodes(subject) if any(_encloses(each, it) for it in inner)]
    return frozenset(name for node in found for name in _set_in(node, also))


@functools.lru_cache(maxsize=16)
def _giving(text: str) -> frozenset[str]:
    """Functions of a file that give such a value."""
    defined = definitions_in(text).items()
    return frozenset(name for name, nodes in defined if all(map(_gives, nodes)))


def _gives(definition: Definition) -> bool:
    returned = [node.value for node in ast.walk(definition) if isinstance(node, ast.Return)]
    return bool(returned) and all(_is_of_start(value, frozenset()) for value in returned)


def _encloses(node: Definition, inner: Definition) -> bool:
    end = node.end_lineno or node.lineno
    return node is not inner and node.lineno <= inner.lineno <= end


def _set_in(definition: Definition, also: frozenset[str]) -> Iterator[str]:
    """`also`: functions of the user's own that give such values."""
    for node in ast.walk(definition):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not _is_of_start(node.value, also):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            if isinstance(target, ast.Name):
                yield target.id
            elif isinstance(target, ast.Attribute):
                yield f".{target.attr}"


def _is_of_start(value: "ast.expr | None", also: frozenset[str]) -> bool:
    return value is not None and _made(value, also) in (_Made.AT_START, _Made.DRAWN)


def _made(value: ast.expr, also: frozenset[str]) -> _Made:
    match value:
        case ast.Constant():
            return _Made.CONSTANT
        case ast.Call():
            return _made_by_call(value, also)
        case ast.Attribute(value=of) | ast.Subscript(value=of) | ast.FormattedValue(value=of):
            made = _made(of, also)
            return _Made.OTHERWISE if made is _Made.CONSTANT else made
        case ast.JoinedStr(values=parts):
            return _together([_made(part, also) for part in parts])
        case ast.BinOp(left=left, right=right):
            return _together([_made(left, also), _made(right, also)])
        case ast.BoolOp(values=parts):
            return _alike([_made(part, also) for part in parts])
        case ast.IfExp(body=body, orelse=orelse):
            return _alike([_made(body, also), _made(orelse, also)])
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return _alike([_made(part, also) for part in parts])
        case ast.Dict(values=parts):  # Of an object that is made with it, the rest counts.
            return _alike([_made(part, also) for part in parts])
    return _Made.OTHERWISE


def _made_by_call(call: ast.Call, also: frozenset[str]) -> _Made:
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    if name in _DRAWING:
        return _Made.DRAWN
    if name in _CLOCKS or name in also or ast.unparse(call.func) == "time.strftime":
        return _Made.AT_START
    of = call.func.value if isinstance(call.func, ast.Attribute) else None
    made = _Made.OTHERWISE if of is None else _made(of, also)
    given = [_made(part, also) for part in call.args]
    if made in (_Made.AT_START, _Made.DRAWN):  # `uuid4().hex()`, `now().strftime("%H")`
        return _together([made, *given])
    return _together(given) if name in _TURNING and given else _Made.OTHERWISE


def _together(parts: "list[_Made]") -> _Made:
    """One text, or path, of several parts."""
    for made in (_Made.DRAWN, _Made.OTHERWISE, _Made.AT_START):
        if made in parts:
            return made
    return _Made.CONSTANT


def _alike(parts: "list[_Made]") -> _Made:
    """One of them, or all: it is so made if each is."""
    return _Made.OTHERWISE if _Made.OTHERWISE in parts else _together(parts)
