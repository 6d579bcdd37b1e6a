"""Changes: what a function, or the methods of a class, change of what they are made with.

What code changes is where it stands, and not what it was made with. What it gives to others may be
changed there; functions of the user's own are read, and those that only read it are no others.
"""

import ast
import contextlib
import dis
import inspect
from collections.abc import Collection, Iterable, Iterator, Sequence
from types import CodeType, FunctionType, ModuleType

from holdfast.records.failure import is_user_code
from holdfast.rollout.code.definitions import (
    Definition,
    Subject,
    nodes_of,
    remembered,
    scopes_of,
)

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
        *("extend", "update", "chain", "reversed", "iter", "map", "filter", "bool", "int"),
        *("float", "hash", "type", "vars", "asdict", "urlencode"),
        *("dump", "safe_dump", "substitute", "safe_substitute", "render"),
        *("debug", "info", "warning", "error", "exception", "critical", "log", "pprint", "pformat"),
    )
)
"""What leaves as it is what it is given."""
_HELPERS = 5
"""How far what is handed on is followed, from one function of the user's to the next."""
_GENERATED = "<string>"
"""The file of methods that a dataclass is given."""
_LITERALS = (ast.List, ast.Tuple, ast.Set, ast.Dict)
_NEW = (ast.Call, ast.BinOp, ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
MEMBERS = "[]"
"""Stands for what is in a list, a set or a dict, as the name of a part."""


def changed_by(subject: Subject, *, depth: int = 0) -> "frozenset[str] | None":
    """Names of variables, and `.name` of attributes, that it changes, by itself or through helpers
    of the user's own: where it stands rather than what it is. `name/part` where only an attribute,
    or what stands under a key, is changed. None where its source is not known. `depth`: of how many
    functions it is a helper's helper."""
    return remembered("changed", subject, depth, _find_changed)


def _find_changed(subject: Subject, depth: int) -> "frozenset[str] | None":
    owners = [owner for owner in _owners(subject) if _is_read(owner)]
    if any(not nodes_of(owner) for owner in owners):
        return None
    scopes = [(owner, scope) for owner in owners for scope in _scopes(owner)]
    # A function works, whatever it returns.
    making = _making([scope for _, scope in scopes]) if isinstance(subject, type) else []
    names = {
        name
        for owner, scope in scopes
        if scope not in making
        for name in _with_aliases({*_changed(scope), *_changed_there(scope, owner, depth)}, scope)
    }
    for library in (owner for owner in _owners(subject) if not _is_read(owner)):
        names |= _stored_by(library)
    return frozenset(names)


def _owners(subject: Subject) -> "list[Subject]":
    """What defines it: of a class, what it is made of, too."""
    return [subject] if isinstance(subject, FunctionType) else list(subject.__mro__[:-1])


def _is_read(owner: Subject) -> bool:
    """Whether its source is read: not that of a library's classes, which takes its time."""
    if isinstance(owner, FunctionType) or is_ours(owner):
        return True
    files = {code.co_filename for code in _codes(owner)} - {_GENERATED}
    return any(map(is_user_code, files)) if files else not _is_installed(owner)


def _is_installed(kind: Subject) -> bool:
    """Of a class without functions of its own."""
    try:
        return not is_user_code(inspect.getfile(kind))
    except OSError:  # In a notebook.
        return False
    except TypeError:  # Built in.
        return True


def is_ours(owner: Subject) -> bool:
    return str(owner.__module__).partition(".")[0] == "holdfast"


def _scopes(owner: Subject) -> Iterator[Definition]:
    return (scope for node in nodes_of(owner) for scope in scopes_of(node))


def _codes(owner: Subject) -> Iterator[CodeType]:
    members = [owner] if isinstance(owner, FunctionType) else vars(owner).values()
    return (member.__code__ for member in members if isinstance(member, FunctionType))


def _stored_by(library: Subject) -> set[str]:
    """`.name` of the attributes that methods of a library's class set: by its bytecode, which is
    there and takes no reading."""
    return {
        f".{step.argval}"
        for code in _codes(library)
        if code.co_name not in _MAKING
        for step in dis.get_instructions(code)
        if step.opname in ("STORE_ATTR", "DELETE_ATTR")
    }


def handed_on_by(subject: Subject, *, depth: int = 0) -> frozenset[str]:
    """Names of variables, and `.name` of attributes, that it gives to others as they are: what can
    be changed may be changed there. A function of the user's own that only reads it is no other."""
    return remembered("handed on", subject, depth, _find_handed_on)


def _find_handed_on(subject: Subject, depth: int) -> frozenset[str]:
    found: set[str] = set()
    for owner in _owners(subject):
        if is_ours(owner):
            continue  # It changes nothing of theirs.
        if _is_read(owner):
            for scope in _scopes(owner):
                given = _handed_on(scope, owner, depth)
                found |= _with_aliases(given, scope, of_member=MEMBERS)
        else:
            found |= {f".{name}" for code in _codes(owner) for name in code.co_names}
    return frozenset(found)


def _changed(definition: Definition) -> Iterator[str]:
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


def _changed_there(definition: Definition, subject: Subject, depth: int) -> Iterator[str]:
    """What helpers change of what it gives them."""
    for call in (node for node in ast.walk(definition) if isinstance(node, ast.Call)):
        helper, first = _helper(call.func, subject)
        if helper is None or depth >= _HELPERS:
            continue
        changed = changed_by(helper, depth=depth + 1) or frozenset()
        for parameter, value in _parameters(call, helper, first):
            for of in _plain_name(value):
                parts = [each.partition("/")[2] for each in changed if _is_of(each, parameter)]
                if of == "self" and all(parts):
                    yield from (f".{part}" for part in parts)
                else:
                    yield from (_part_of(of, part) for part in parts)


def _is_of(changed: str, name: str) -> bool:
    return changed.partition("/")[0] == name


def _part_of(name: str, part: str) -> str:
    """Of a part's part, the part; but its members are told apart from it."""
    if part == MEMBERS and "/" in name:
        return name if name.endswith(MEMBERS) else f"{name}{MEMBERS}"
    return f"{name}/{part}" if part and "/" not in name else name


def _parameters(call: ast.Call, helper: FunctionType, first: int) -> Iterator[tuple[str, ast.expr]]:
    """The parameters that the call gives, each with its value."""
    names = helper.__code__.co_varnames[first : helper.__code__.co_argcount]
    yield from zip(names, call.args, strict=False)
    yield from ((each.arg, each.value) for each in call.keywords if each.arg)


def _making(scopes: Sequence[Definition]) -> list[Definition]:
    """The functions among them in which an object is made: with those that only these use."""
    making = [scope for scope in scopes if _makes(scope)]
    uses = [(scope, _attributes_in(scope)) for scope in scopes]
    while more := [each for each in scopes if each not in making and _only_for(each, making, uses)]:
        making += more
    return making


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


_Uses = tuple[Definition, Collection[tuple[str, type[ast.expr_context]]]]


def _attributes_in(scope: Definition) -> set[tuple[str, type[ast.expr_context]]]:
    """The attributes that it reads, and those that it sets."""
    return {
        (node.attr, type(node.ctx)) for node in ast.walk(scope) if isinstance(node, ast.Attribute)
    }


def _only_for(node: Definition, making: Sequence[Definition], uses: Sequence[_Uses]) -> bool:
    """Whether a method, or the setter of a property, is used by methods that make the object, and
    by no others."""
    if not isinstance(node, ast.FunctionDef):
        return False
    is_setter = any(getattr(each, "attr", "") == "setter" for each in node.decorator_list)
    use = (node.name, ast.Store if is_setter else ast.Load)
    users = [scope for scope, used in uses if use in used]
    return bool(users) and all(user in making for user in users)


def _plain(node: "ast.expr | None") -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _handed_on(definition: Definition, subject: Subject, depth: int) -> Iterator[str]:
    given = _passed_on(definition, subject, depth)
    return (_part_of(name, part) for each, part in given for name in _plain_name(each))


def _passed_on(
    definition: Definition, subject: Subject, depth: int
) -> Iterator[tuple[ast.expr, str]]:
    """What it passes on to others, and which part of that ("": all)."""
    only_read = {
        id(part)
        for node in ast.walk(definition)
        if isinstance(node, ast.Call) and _only_reads(node.func, definition, subject)
        for given in (*node.args, *(each.value for each in node.keywords))
        for part in ast.walk(given)
        if isinstance(part, _LITERALS)
    }
    for node in ast.walk(definition):
        match node:
            case ast.List() | ast.Tuple() | ast.Set() | ast.Dict() if id(node) in only_read:
                continue
            case ast.Call() if not _only_reads(node.func, definition, subject):
                yield from _kept(node, subject, depth)
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                if not list(_aliases_of(node)):
                    yield value, ""
            case ast.List() | ast.Tuple() | ast.Set():
                yield from ((each, "") for each in node.elts)
            case ast.Dict():  # But not what `**` copies.
                named = zip(node.keys, node.values, strict=True)
                yield from ((value, "") for key, value in named if key is not None)


def _plain_name(given: ast.expr) -> Iterator[str]:
    if isinstance(given, ast.Attribute) and isinstance(given.value, ast.Name):
        of = given.value.id
        yield f".{given.attr}" if of == "self" else f"{of}/{given.attr}"
    elif isinstance(given, ast.Name) and isinstance(given.ctx, ast.Load):
        yield given.id


def _kept(call: ast.Call, subject: Subject, depth: int) -> Iterator[tuple[ast.expr, str]]:
    """The arguments that the called function changes or hands on, as far as is known: all but
    those that one of the user's own only reads."""
    given = [*call.args, *(each.value for each in call.keywords if each.arg)]
    if _calls_us(call.func, subject):
        return  # It changes nothing of theirs.
    helper, first = _helper(call.func, subject)
    kept = None if helper is None else _parameters_kept(helper, depth)
    if helper is None or kept is None or any(isinstance(each, ast.Starred) for each in call.args):
        yield from ((value, "") for value in given)
        return
    known = list(_parameters(call, helper, first))
    for name, value in known:
        yield from ((value, each.partition("/")[2]) for each in kept if _is_of(each, name))
    unknown = (value for value in given if not any(value is each for _, each in known))
    yield from ((value, "") for value in unknown)


def _parameters_kept(helper: FunctionType, depth: int) -> "frozenset[str] | None":
    """None where it is not known."""
    changed = None if depth >= _HELPERS else changed_by(helper, depth=depth + 1)
    if changed is None:
        return None
    whole = frozenset(name for name in changed if "/" not in name)
    return whole | handed_on_by(helper, depth=depth + 1)


def _helper(called: ast.expr, subject: Subject) -> "tuple[FunctionType | None, int]":
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


def _calls_us(called: ast.expr, subject: Subject) -> bool:
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


def _known_as(name: str, subject: Subject) -> object:
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


def _set_anew(scope: Definition) -> Iterator[str]:
    """Names that are set to something new on the way, as by `row = dict(row)`: what becomes of them
    then becomes of that."""
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and isinstance(node.value, _NEW):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def _with_aliases(names: Iterable[str], scope: Definition, *, of_member: str = "") -> set[str]:
    """What becomes of a name becomes of what it is another name of; what becomes of what is in a
    list becomes of the list, or of the part of it that `of_member` names."""
    fresh = set(_set_anew(scope))
    aliases = [pair for node in ast.walk(scope) for pair in _aliases_of(node)]
    members = [pair for node in ast.walk(scope) for pair in _members_of(node)]
    aliases = [pair for pair in aliases if pair[0] not in fresh]
    members = [pair for pair in members if pair[0] not in fresh]
    found = {name for name in names if name.partition("/")[0] not in fresh}
    while True:
        parts = [name.partition("/") for name in found]
        more = {_part_of(of, part) for name, _, part in parts for a, of in aliases if a == name}
        more |= {_part_of(of, of_member) for name, _, _ in parts for a, of in members if a == name}
        if more <= found:
            return found
        found |= more


def _only_reads(called: ast.expr, definition: Definition, subject: Subject) -> bool:
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
