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
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, ModuleType

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
    )
)
"""What leaves as it is what it is given."""
_STARTING = frozenset(
    (
        *("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"),
        *("now", "utcnow", "today", "uuid1", "uuid4", "getpid", "mkdtemp", "mkstemp"),
        *("token_hex", "token_bytes", "token_urlsafe", "urandom"),
    )
)
"""What gives another value at each start: a name for it, or when that was."""
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


def changed_by(subject: "FunctionType | type") -> "frozenset[str] | None":
    """Names of variables, and `.name` of attributes, that it changes: where it stands rather than
    what it is. None where its source is not known."""
    found = _nodes(subject)
    if not found:
        return None
    scopes = [
        scope for node in found for scope in _scopes(node) if scope is node or not _makes(scope)
    ]
    return frozenset(name for scope in scopes for name in _with_aliases(_changed(scope), scope))


def handed_on_by(
    subject: "FunctionType | type", *, by: tuple[FunctionType, ...] = ()
) -> frozenset[str]:
    """Names of variables, and `.name` of attributes, that it gives to others as they are: what can
    be changed may be changed there. A function of the user's own that only reads it is no other.
    `by`: the functions through which it came here."""
    scopes = [scope for node in _nodes(subject) for scope in _scopes(node)]
    return frozenset(
        name for scope in scopes for name in _with_aliases(_handed_on(scope, subject, by), scope)
    )


def made_at_start(subject: "FunctionType | type") -> frozenset[str]:
    """Names of variables around a function, and `.name` of a class's attributes, that are set to
    the time, a process id, or an id that is drawn: they are others at each start."""
    found = _nodes(subject)
    if isinstance(subject, FunctionType):
        around = [each for each in _all_named(subject) if any(_encloses(each, it) for it in found)]
        return frozenset(name for node in around for name in _set_at_start(node))
    return frozenset(name for node in found for name in _set_at_start(node))


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
    try:
        file = inspect.getfile(subject)
    except (TypeError, OSError):  # A class of a notebook is in no file; its functions may be.
        file = next((code.co_filename for code in _codes(subject)), "")
    linecache.checkcache(file)
    text = "".join(linecache.getlines(file))
    return _definitions(text) if len(text) <= _LARGEST else {}


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


def _makes(node: ast.AST) -> bool:
    """Whether it is a method that gives an object its attributes, as one does that returns the
    object, to be called in a chain."""
    if not isinstance(node, ast.FunctionDef):
        return False
    last = node.body[-1]
    returns_self = isinstance(last, ast.Return) and _plain(last.value) == "self"
    return node.name in _MAKING or (returns_self and not node.name.startswith("__"))


def _plain(node: "ast.expr | None") -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _handed_on(
    definition: _Definition, subject: "FunctionType | type", by: tuple[FunctionType, ...]
) -> Iterator[str]:
    return (name for each in _given(definition, subject, by) for name in _plain_name(each))


def _given(
    definition: _Definition, subject: "FunctionType | type", by: tuple[FunctionType, ...]
) -> Iterator[ast.expr]:
    """Whatever it gives to others."""
    for node in ast.walk(definition):
        match node:
            case ast.Call() if not _only_reads(node.func, definition, subject):
                yield from _kept(node, subject, by)
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                if not list(_aliases_of(node)):
                    yield value
            case ast.List() | ast.Tuple() | ast.Set():
                yield from node.elts
            case ast.Dict():
                yield from node.values


def _plain_name(given: ast.expr) -> Iterator[str]:
    if isinstance(given, ast.Attribute):
        yield f".{given.attr}"
    elif isinstance(given, ast.Name) and isinstance(given.ctx, ast.Load):
        yield given.id


def _kept(
    call: ast.Call, subject: "FunctionType | type", by: tuple[FunctionType, ...]
) -> Iterator[ast.expr]:
    """The arguments that the called function changes or hands on, as far as is known: all but
    those that one of the user's own only reads."""
    keywords = {each.arg: each.value for each in call.keywords if each.arg}
    helper, first = _helper(call.func, subject)
    may_be_kept = None if helper is None or helper in by else _parameters_kept(helper, by)
    if helper is None or may_be_kept is None or any(isinstance(a, ast.Starred) for a in call.args):
        yield from (*call.args, *keywords.values())
        return
    names = helper.__code__.co_varnames[first : helper.__code__.co_argcount]
    for at, value in enumerate(call.args):
        if at >= len(names) or names[at] in may_be_kept:
            yield value
    yield from (value for name, value in keywords.items() if name in may_be_kept)


def _parameters_kept(helper: FunctionType, by: tuple[FunctionType, ...]) -> "frozenset[str] | None":
    """None where it is not known."""
    changed = changed_by(helper)
    if changed is None or len(by) >= _HELPERS:
        return None
    return changed | handed_on_by(helper, by=(*by, helper))


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


def _with_aliases(names: Iterable[str], scope: _Definition) -> set[str]:
    """What becomes of a name becomes of what it is another name of."""
    aliases = [pair for node in ast.walk(scope) for pair in _aliases_of(node)]
    found = set(names)
    while more := {of for alias, of in aliases if alias in found} - found:
        found |= more
    return found


def _set_at_start(definition: _Definition) -> Iterator[str]:
    for node in ast.walk(definition):
        if isinstance(node, ast.Assign | ast.AnnAssign) and _is_made_at_start(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    yield target.id
                elif isinstance(target, ast.Attribute):
                    yield f".{target.attr}"


def _is_made_at_start(value: "ast.expr | None") -> bool:
    calls = [] if value is None else [n for n in ast.walk(value) if isinstance(n, ast.Call)]
    names = [getattr(call.func, "attr", getattr(call.func, "id", "")) for call in calls]
    return any(name in _STARTING for name in names)


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
    """`a`, `.b` and `.c` of `a.b["key"].c`."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Attribute):
            yield f".{node.attr}"
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id
