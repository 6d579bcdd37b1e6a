"""Definitions: where in its file a function or a class is written, and what it changes there.

A file's digest tells its functions apart by their names alone. Two lambdas, or two functions of one
name, have sources of their own; so the source counts, which is the same in every version of Python,
as bytecode is not. Bytecode stands for what has no source.
"""

import ast
import contextlib
import functools
import inspect
import linecache
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeVar

from holdfast.records.failure import is_user_code
from holdfast.rollout.code.source import bytecode, canonical

_LARGEST = 1_000_000
"""Characters of a file that is parsed."""
_LAMBDA = "<lambda>"
_MAKING = frozenset({"__init__", "__new__", "__post_init__"})
"""What gives an object its attributes; what other methods set is where it stands."""
_CALLED = frozenset({"__call__", "rollout", "score"})
"""Methods that are called with a rollout, or a trajectory."""
_CHANGING = frozenset(
    (
        *("append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse", "add"),
        *("discard", "update", "setdefault", "popitem", "appendleft", "popleft", "subtract"),
    )
)
"""Methods that change a list, a set, a dict or a deque."""
_READING = frozenset(
    (
        *("len", "str", "repr", "sorted", "list", "dict", "tuple", "set", "frozenset", "print"),
        *("enumerate", "zip", "range", "min", "max", "sum", "any", "all", "isinstance"),
        *("dumps", "join", "format", "choice", "choices", "sample", "copy", "deepcopy"),
        *(
            "extend",
            "update",
            "chain",
            "reversed",
            "iter",
            "map",
            "filter",
            "bool",
            "int",
            "float",
            "hash",
            "type",
            "vars",
        ),
        *("debug", "info", "warning", "error", "exception", "critical", "log", "pprint", "pformat"),
    )
)
"""What leaves as it is what it is given."""
_STARTING = frozenset(
    (
        *("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"),
        *("now", "utcnow", "today", "gmtime", "localtime", "ctime", "asctime"),
        *("uuid1", "uuid4", "getpid", "token_hex", "token_bytes", "token_urlsafe", "urandom"),
        *("mkdtemp", "mkstemp", "mktemp", "NamedTemporaryFile", "TemporaryDirectory"),
        *("getrandbits", "randbytes"),
    )
)
"""What gives another value at each start: a name for it, or when that was."""
_TURNING = frozenset({"str", "int", "float", "round", "Path", "strftime", "isoformat", "hex"})
"""What makes a text or a number of it."""
_HELPERS = 5
"""How far what is handed on is followed, from one function of the user's to the next."""
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef


def own_source(subject: object) -> bytes:
    """What tells it apart from others of its name in its file; b"" where there is none."""
    if not isinstance(subject, FunctionType | type):
        return b""
    named = _named(subject)
    if len(named) == 1:
        return b""
    found = _chosen(subject, named)
    return b"".join(map(canonical, found)) if found else bytecode(subject)


_memory: "ContextVar[dict[object, Any] | None]" = ContextVar("memory", default=None)
_Found = TypeVar("_Found")


@contextlib.contextmanager
def remembering() -> Iterator[None]:
    """In the block, each function is read once, however many others it helps."""
    token = _memory.set({})
    try:
        yield
    finally:
        _memory.reset(token)


def _remembered(
    what: str,
    subject: "FunctionType | type",
    depth: int,
    find: "Callable[[FunctionType | type, int], _Found]",
) -> _Found:
    memory, key = _memory.get(), (what, id(subject), depth)
    if memory is None:
        return find(subject, depth)
    if key not in memory:
        memory[key] = (subject, find(subject, depth))  # It stays alive, and its id its own.
    found: _Found = memory[key][1]
    return found


def changed_by(subject: "FunctionType | type", *, depth: int = 0) -> "frozenset[str] | None":
    """Names of variables, and `.name` of attributes, that it changes, by itself or through helpers
    of the user's own: where it stands rather than what it is. `name/part` where only an attribute,
    or what stands under a key, is changed. None where its source is not known. `depth`: of how many
    functions it is a helper's helper."""
    return _remembered("changed", subject, depth, _find_changed)


def _find_changed(subject: "FunctionType | type", depth: int) -> "frozenset[str] | None":
    found = _nodes(subject)
    if not found:
        return None
    names = (
        name
        for node in found
        for scope in _working(node)
        for name in _with_aliases({*_changed(scope), *_changed_there(scope, subject, depth)}, scope)
    )
    return frozenset(names)


def handed_on_by(subject: "FunctionType | type", *, depth: int = 0) -> frozenset[str]:
    """Names of variables, and `.name` of attributes, that it gives to others as they are: what can
    be changed may be changed there. A function of the user's own that only reads it is no other."""
    return _remembered("handed on", subject, depth, _find_handed_on)


def _find_handed_on(subject: "FunctionType | type", depth: int) -> frozenset[str]:
    scopes = [scope for node in _nodes(subject) for scope in _scopes(node)]
    return frozenset(
        name for scope in scopes for name in _with_aliases(_handed_on(scope, subject, depth), scope)
    )


def made_at_start(subject: "FunctionType | type") -> frozenset[str]:
    """Names of variables around a function, and `.name` of a class's attributes, that are set to
    the time, a process id, or an id that is drawn: they are others at each start."""
    return _remembered("start", subject, 0, _find_made_at_start)


def _find_made_at_start(subject: "FunctionType | type", _: int) -> frozenset[str]:
    found: Iterable[_Definition] = _nodes(subject)
    also = _giving_start(_text_of(subject))
    if isinstance(subject, FunctionType):
        inner = list(found)
        found = [each for each in _all_named(subject) if any(_encloses(each, it) for it in inner)]
    return frozenset(name for node in found for name in _set_at_start(node, also))


def _nodes(subject: "FunctionType | type") -> tuple[_Definition, ...]:
    named = _named(subject)
    return named if len(named) == 1 else _chosen(subject, named)


def _named(subject: "FunctionType | type") -> tuple[_Definition, ...]:
    name = subject.__code__.co_name if isinstance(subject, FunctionType) else subject.__name__
    return _in_file(subject).get(name, ())


def _all_named(subject: "FunctionType | type") -> Iterator[_Definition]:
    return (node for nodes in _in_file(subject).values() for node in nodes)


def _in_file(subject: "FunctionType | type") -> "dict[str, tuple[_Definition, ...]]":
    """Everything that is defined in its file, by name."""
    return _definitions(_text_of(subject))


@functools.lru_cache(maxsize=16)
def _giving_start(text: str) -> frozenset[str]:
    """Functions of a file that give what is another one at each start."""
    defined = _definitions(text).items()
    return frozenset(name for name, nodes in defined if all(map(_gives_start, nodes)))


def _text_of(subject: "FunctionType | type") -> str:
    """Of its file; "" where that is too long to be read."""
    try:
        file = inspect.getfile(subject)
    except (TypeError, OSError):  # A class of a notebook is in no file; its functions may be.
        file = next((code.co_filename for code in _codes(subject)), "")
    linecache.checkcache(file)
    text = "".join(linecache.getlines(file))
    return text if len(text) <= _LARGEST else ""


@functools.lru_cache(maxsize=16)
def _definitions(text: str) -> dict[str, tuple[_Definition, ...]]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    found: dict[str, tuple[_Definition, ...]] = {}
    for node in ast.walk(tree):
        if isinstance(node, _Definition):
            name = _LAMBDA if isinstance(node, ast.Lambda) else node.name
            found[name] = (*found.get(name, ()), node)
    return found


def _chosen(
    subject: "FunctionType | type", named: tuple[_Definition, ...]
) -> tuple[_Definition, ...]:
    codes = list(_codes(subject))
    if isinstance(subject, type):
        return tuple(node for node in named if any(_holds(node, code) for code in codes))
    (code,) = codes
    if code.co_name == _LAMBDA:
        found = [each for each in named if isinstance(each, ast.Lambda) and _holds_all(each, code)]
        # One lambda may be in another: it is the last of those that hold it.
        return tuple(found[-1:])
    return tuple(node for node in named if _first_line(node) == code.co_firstlineno)


def _codes(subject: "FunctionType | type") -> Iterator[CodeType]:
    members = vars(subject).values() if isinstance(subject, type) else (subject,)
    return (member.__code__ for member in members if isinstance(member, FunctionType))


def _first_line(node: _Definition) -> int:
    decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
    return min([node.lineno, *(each.lineno for each in decorators)])


def _holds(node: _Definition, code: CodeType) -> bool:
    return node.lineno <= code.co_firstlineno <= (node.end_lineno or node.lineno)


def _holds_all(node: ast.Lambda, code: CodeType) -> bool:
    """Whether each instruction is from its body. The first ones of a function have no width."""
    body = node.body
    start, end = (body.lineno, body.col_offset), (body.end_lineno or 0, body.end_col_offset or 0)
    places = [
        ((line, column), (last, width))
        for line, last, column, width in code.co_positions()
        if line is not None and column is not None and last is not None and width
    ]
    return bool(places) and all(start <= first and last <= end for first, last in places)


def _scopes(definition: _Definition) -> Iterator[_Definition]:
    """The methods of a class by themselves: a name in one is no name in another."""
    if not isinstance(definition, ast.ClassDef):
        yield definition
        return
    for child in definition.body:
        if isinstance(child, _Definition):
            yield from _scopes(child)


def _changed(definition: _Definition) -> Iterator[str]:
    for node in ast.walk(definition):
        match node:
            case ast.Nonlocal():
                yield from node.names
            case ast.Attribute() | ast.Subscript() if not isinstance(node.ctx, ast.Load):
                yield from _chain(node)
            case ast.Call(func=ast.Attribute(attr=name, value=of)) if name in _CHANGING:
                yield from _chain(of)
            case ast.Call(
                func=ast.Name(id="setattr") | ast.Attribute(attr="__setattr__"),
                args=[of, ast.Constant(value=str(name)), *_],
            ):
                yield from _chain(ast.Attribute(value=of, attr=name))


def _changed_there(
    definition: _Definition, subject: "FunctionType | type", depth: int
) -> Iterator[str]:
    """What helpers change of what it gives them."""
    for call in (node for node in ast.walk(definition) if isinstance(node, ast.Call)):
        helper, first = _helper(call.func, subject)
        if helper is None or depth >= _HELPERS:
            continue
        changed = changed_by(helper, depth=depth + 1) or frozenset()
        for parameter, value in _parameters(call, helper, first):
            for of in _plain_name(value):
                parts = [each.partition("/")[1:] for each in changed if _is_of(each, parameter)]
                name = "" if of == "self" and all(mark for mark, _ in parts) else of
                yield from (f"{name}{mark if name else '.'}{part}" for mark, part in parts)


def _is_of(changed: str, name: str) -> bool:
    return changed.partition("/")[0] == name


def _parameters(call: ast.Call, helper: FunctionType, first: int) -> Iterator[tuple[str, ast.expr]]:
    """The parameters that the call gives, each with its value."""
    names = helper.__code__.co_varnames[first : helper.__code__.co_argcount]
    yield from zip(names, call.args, strict=False)
    yield from ((each.arg, each.value) for each in call.keywords if each.arg)


def _working(definition: _Definition) -> list[_Definition]:
    """The functions of a definition in which it works: not those in which an object is made."""
    scopes = list(_scopes(definition))
    if not isinstance(definition, ast.ClassDef):
        return scopes
    making = [scope for scope in scopes if _makes(scope)]
    while more := [
        each for each in scopes if each not in making and _only_for(each, making, scopes)
    ]:
        making += more
    return [scope for scope in scopes if scope not in making]


def _makes(node: ast.AST) -> bool:
    """Whether it is a method that gives an object its attributes: as one does that returns the
    object, to be called in a chain, or another one that it has made."""
    if not isinstance(node, ast.FunctionDef):
        return False
    decorators = [_plain(each) for each in node.decorator_list]
    last = node.body[-1]
    returned = _plain(last.value) if isinstance(last, ast.Return) else ""
    returns_other = returned not in ("", "self") and not any(
        name.startswith(".") for name in _changed(node)
    )
    is_chained = (returned == "self" or returns_other) and not node.name.startswith("__")
    return node.name in _MAKING or "classmethod" in decorators or is_chained


def _only_for(
    node: _Definition, making: Sequence[_Definition], scopes: Sequence[_Definition]
) -> bool:
    """Whether a method, or the setter of a property, is used by methods that make the object, and
    by no others of its class."""
    if not isinstance(node, ast.FunctionDef):
        return False
    is_setter = any(getattr(each, "attr", "") == "setter" for each in node.decorator_list)
    context = ast.Store if is_setter else ast.Load
    users = [scope for scope in scopes if _uses(scope, node.name, context)]
    return bool(users) and all(user in making for user in users)


def _uses(scope: _Definition, name: str, context: type[ast.expr_context]) -> bool:
    return any(
        isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, context)
        for node in ast.walk(scope)
    )


def _plain(node: "ast.expr | None") -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _handed_on(
    definition: _Definition, subject: "FunctionType | type", depth: int
) -> Iterator[str]:
    return (name for each in _passed_on(definition, subject, depth) for name in _plain_name(each))


def _passed_on(
    definition: _Definition, subject: "FunctionType | type", depth: int
) -> Iterator[ast.expr]:
    """What it passes on to others."""
    for node in ast.walk(definition):
        match node:
            case ast.Call() if not _only_reads(node.func, definition, subject):
                yield from _kept(node, subject, depth)
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                if not list(_aliases_of(node)):
                    yield value
            case ast.List() | ast.Tuple() | ast.Set():
                yield from node.elts
            case ast.Dict():  # But not what `**` copies.
                yield from (v for k, v in zip(node.keys, node.values, strict=True) if k is not None)


def _plain_name(given: ast.expr) -> Iterator[str]:
    if isinstance(given, ast.Attribute):
        yield f".{given.attr}"
    elif isinstance(given, ast.Name) and isinstance(given.ctx, ast.Load):
        yield given.id


def _kept(call: ast.Call, subject: "FunctionType | type", depth: int) -> Iterator[ast.expr]:
    """The arguments that the called function changes or hands on, as far as is known: all but
    those that one of the user's own only reads."""
    given = [*call.args, *(each.value for each in call.keywords if each.arg)]
    if _is_ours(call.func, subject):
        return  # It changes nothing of theirs.
    helper, first = _helper(call.func, subject)
    kept = None if helper is None else _parameters_kept(helper, depth)
    if helper is None or kept is None or any(isinstance(each, ast.Starred) for each in call.args):
        yield from given
        return
    known = list(_parameters(call, helper, first))
    yield from (value for name, value in known if name in kept)
    yield from (value for value in given if not any(value is each for _, each in known))


def _parameters_kept(helper: FunctionType, depth: int) -> "frozenset[str] | None":
    """None where it is not known."""
    changed = None if depth >= _HELPERS else changed_by(helper, depth=depth + 1)
    if changed is None:
        return None
    whole = frozenset(name for name in changed if "/" not in name)
    return whole | handed_on_by(helper, depth=depth + 1)


def _helper(called: ast.expr, subject: "FunctionType | type") -> "tuple[FunctionType | None, int]":
    """The user's own function that a call is of, by its name here, in a module, or in the class;
    and the place of the first parameter that the call gives."""
    found: object = None
    first = 0
    match called:
        case ast.Name(id=name):
            found = _known_as(name, subject)
        case ast.Attribute(attr=name, value=ast.Name(id="self")) if isinstance(subject, type):
            found = inspect.getattr_static(subject, name, None)
            first = 0 if isinstance(found, staticmethod) else 1
            found = found.__func__ if isinstance(found, staticmethod) else found
        case ast.Attribute(attr=name, value=ast.Name(id=of)):
            module = _known_as(of, subject)
            found = vars(module).get(name) if type(module) is ModuleType else None
    is_own = type(found) is FunctionType and is_user_code(found.__code__.co_filename)
    return (found, first) if isinstance(found, FunctionType) and is_own else (None, 0)


def _is_ours(called: ast.expr, subject: "FunctionType | type") -> bool:
    """Whether it is a function or a class of Holdfast."""
    match called:
        case ast.Name(id=name):
            found = _known_as(name, subject)
        case ast.Attribute(value=ast.Name(id=name)):
            found = _known_as(name, subject)
            return type(found) is ModuleType and found.__name__.partition(".")[0] == "holdfast"
        case _:
            return False
    is_code = type(found) is FunctionType or issubclass(type(found), type)
    home = getattr(found, "__module__", None) if is_code else None
    return isinstance(home, str) and home.partition(".")[0] == "holdfast"


def _known_as(name: str, subject: "FunctionType | type") -> object:
    """What stands under the name where the code is written."""
    members = vars(subject).values() if isinstance(subject, type) else (subject,)
    functions = [member for member in members if isinstance(member, FunctionType)]
    for function in functions:
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        with contextlib.suppress(KeyError, ValueError):  # Not closed over, or not bound yet.
            return cells[name].cell_contents
    return functions[0].__globals__.get(name) if functions else None


def _aliases_of(node: ast.AST) -> Iterator[tuple[str, str]]:
    """`config` and `.config` of `config = self.config`."""
    targets: list[ast.expr] = []
    match node:
        case ast.Assign(targets=targets, value=value):
            pass
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            targets = [target]
        case ast.NamedExpr(target=target, value=value):
            targets = [target]
        case _:
            return
    if all(isinstance(target, ast.Name) for target in targets):
        for name in _plain_name(value):
            yield from ((target.id, name) for target in targets if isinstance(target, ast.Name))


def _members_of(node: ast.AST) -> Iterator[tuple[str, str]]:
    """`item` and `.items` of `for item in self.items`."""
    match node:
        case ast.For(target=ast.Name(id=name), iter=of):
            yield from ((name, each) for each in _plain_name(of))
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript(value=of)):
            yield from ((name, each) for each in _plain_name(of))
        case ast.Assign(
            targets=[ast.Name(id=name)], value=ast.Attribute(value=ast.Name(id=of), attr=part)
        ) if of != "self":
            yield name, f"{of}/{part}"


def _with_aliases(names: Iterable[str], scope: _Definition) -> set[str]:
    """What becomes of a name becomes of what it is another name of; to change what is in a list is
    to change the list."""
    aliases = [pair for node in ast.walk(scope) for pair in _aliases_of(node)]
    members = [pair for node in ast.walk(scope) for pair in _members_of(node)]
    found = set(names)
    while True:
        parts = [name.partition("/") for name in found]
        more = {f"{of}{mark}{part}" for name, mark, part in parts for a, of in aliases if a == name}
        more |= {of for name, _, _ in parts for member, of in members if member == name}
        if more <= found:
            return found
        found |= more


def _set_at_start(definition: _Definition, also: frozenset[str]) -> Iterator[str]:
    """`also`: functions of the user's own that give such values."""
    for node in ast.walk(definition):
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        if not _is_made_at_start(node.value, also):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            if isinstance(target, ast.Name):
                yield target.id
            elif isinstance(target, ast.Attribute):
                yield f".{target.attr}"


def _is_made_at_start(value: "ast.expr | None", also: frozenset[str] = frozenset()) -> bool:
    """Whether it is that alone: of a dict, or an object that is made with it, the rest counts."""

    def any_of(*parts: "ast.expr | None") -> bool:
        return any(_is_made_at_start(part, also) for part in parts)

    match value:
        case ast.Call(func=ast.Attribute(attr="strftime", value=ast.Name(id="time"))):
            return True
        case ast.Call(func=func, args=given):
            name = getattr(func, "attr", getattr(func, "id", ""))
            inside = given if name in _TURNING else []
            return (
                name in _STARTING or name in also or any_of(getattr(func, "value", None), *inside)
            )
        case ast.Attribute(value=of) | ast.Subscript(value=of):
            return any_of(of)
        case ast.JoinedStr(values=parts):
            return any_of(*(p.value for p in parts if isinstance(p, ast.FormattedValue)))
        case ast.BinOp(left=left, right=right):
            return any_of(left, right)
        case ast.BoolOp(values=values):
            return any_of(*values)
        case ast.Dict(values=values) | ast.Tuple(elts=values) | ast.List(elts=values) if values:
            return all(_is_made_at_start(each, also) for each in values)
    return False


def _gives_start(definition: _Definition) -> bool:
    returned = [node.value for node in ast.walk(definition) if isinstance(node, ast.Return)]
    return bool(returned) and all(map(_is_made_at_start, returned))


def _encloses(node: _Definition, inner: _Definition) -> bool:
    end = node.end_lineno or node.lineno
    return node is not inner and node.lineno <= inner.lineno <= end


def _only_reads(called: ast.expr, definition: _Definition, subject: "FunctionType | type") -> bool:
    """Also the methods of what a rollout or a scorer is given, which are ours."""
    if isinstance(called, ast.Name):
        return called.id in _READING
    if not isinstance(called, ast.Attribute):
        return False
    is_called = not isinstance(subject, type) or getattr(definition, "name", "") in _CALLED
    parameters = [] if isinstance(definition, ast.ClassDef) else definition.args.args
    ours = {each.arg for each in parameters if is_called or each.arg == "t"} - {"self"}
    is_ours = isinstance(called.value, ast.Name) and called.value.id in ours
    return is_ours or called.attr in _READING


def _chain(node: ast.AST) -> Iterator[str]:
    """`a/b` of `a.b["key"].c`, `.b/key` of `self.b["key"].c`: what is changed, and which part of
    it, if that has a name."""
    inside: list[str] = []
    while isinstance(node, ast.Attribute | ast.Subscript):
        inside.insert(0, _part(node))
        node = node.value
    if isinstance(node, ast.Call) and _plain(node.func) == "type":
        node = node.func  # `type(self).number`
    if not isinstance(node, ast.Name):
        return
    of_self = node.id == "self" and bool(inside)
    first, *rest = [f".{inside[0]}", *inside[1:]] if of_self else [node.id, *inside]
    yield f"{first}/{rest[0]}" if rest and rest[0] else first


def _part(node: "ast.Attribute | ast.Subscript") -> str:
    """The name of an attribute, or the key; "" where it is computed."""
    if isinstance(node, ast.Attribute):
        return node.attr
    key = node.slice.value if isinstance(node.slice, ast.Constant) else None
    return key if isinstance(key, str) else ""
