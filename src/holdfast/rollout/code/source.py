"""Reads the source of a function, a class or a variable, without comments and layout, and the names
that the source uses.

Docstrings are part of the source, because models are shown the docstrings of tools. Evaluations
that are defined in a class are not part of the class's source.
"""

import ast
import copy
import csv
import functools
import importlib
import importlib.util
import linecache
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from msgspec import Struct

_INSTALLED = ("site-packages", "dist-packages")
_NOT_OWN = (
    Path(__file__).resolve().parents[2],
    *(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib")),
)


def is_own(subject: "FunctionType | type | ModuleType") -> bool:
    """Returns whether code belongs to the user, and not to Holdfast, Python or an installed
    package.

    A function is judged by the file of its code, because `functools.wraps` gives it another
    function's module. Code without a file, for example in a notebook, belongs to the user.
    """
    if isinstance(subject, FunctionType) and os.path.isfile(subject.__code__.co_filename):
        return _is_own_file(subject.__code__.co_filename)
    name = subject.__name__ if isinstance(subject, ModuleType) else subject.__module__
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is not None and name != "__main__":
        return _is_own_file(file)
    return name == "__main__" or str(name).partition(".")[0] not in sys.stdlib_module_names


def import_own(name: str) -> "ModuleType | None":
    """Imports a module that user code imports only when it runs. Returns None if the module cannot
    be imported or is not the user's."""
    try:
        spec = importlib.util.find_spec(name.partition(".")[0])
        if spec is None or (spec.origin is not None and not _is_own_file(spec.origin)):
            return None
        return importlib.import_module(name)
    except Exception:  # The same error is raised again when the code runs.
        return None


@functools.lru_cache(maxsize=32_768)
def _is_own_file(name: str) -> bool:
    file = Path(name).resolve()
    if file.suffix != ".py" or any(part in _INSTALLED for part in file.parts):
        return False
    return not any(file.is_relative_to(folder) for folder in _NOT_OWN) and not _is_recorded(file)


def _is_recorded(file: Path) -> bool:
    """Returns whether a package installer put the file in its folder, as `pip install --target`
    does."""
    folder = file.parent
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return file.relative_to(folder).as_posix() in _recorded(folder)


@functools.lru_cache(maxsize=1024)
def _recorded(folder: Path) -> frozenset[str]:
    files: set[str] = set()
    for record in folder.glob("*.dist-info/RECORD"):
        lines = record.read_text("utf-8", errors="replace").splitlines()
        files |= {row[0] for row in csv.reader(lines) if row}
    return frozenset(files)


_EVALUATION = "evaluation_test"
_LARGEST = 1_000_000
"""The most characters of a file that is parsed. Parsing ten million characters takes some seconds.
"""
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Defined = _Function | ast.Lambda | ast.ClassDef
_Assignment = ast.Assign | ast.AnnAssign | ast.AugAssign
Scope = Mapping[str, Any]
"""The variables of a module."""


class SourceText(Struct, frozen=True):
    text: str
    names: frozenset[str]
    """The names that the source reads, with attributes, for example `texts.PROMPT`."""
    imports: Mapping[str, tuple[str, str]]
    """The imports within the source. Maps each name to its module and its name there ("" if the
    import is of the module itself)."""


class _File:
    """The definitions in a file, or in a notebook's cell."""

    def __init__(self, text: str):
        self.definitions: dict[tuple[str, int], _Function | ast.ClassDef] = {}
        """The definitions, by name and line."""
        self.statements: list[ast.stmt] = []
        """The statements that set or import variables of the module."""
        try:
            self.tree = ast.parse(text if len(text) <= _LARGEST else "")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            self.tree = ast.parse("")
        self._read(self.tree, is_top=True)

    def _read(self, node: ast.AST, *, is_top: bool) -> None:
        for inner in ast.iter_child_nodes(node):
            is_defined = isinstance(inner, _Function | ast.ClassDef)
            if isinstance(inner, _Function | ast.ClassDef):
                lines = [inner.lineno, *(each.lineno for each in inner.decorator_list)]
                self.definitions[inner.name, min(lines)] = inner
            elif is_top and isinstance(inner, _Assignment | ast.ImportFrom):
                self.statements.append(inner)
            if not isinstance(inner, ast.expr):
                self._read(inner, is_top=is_top and not is_defined)


def _file_at(name: str) -> _File:
    if os.path.isfile(name):
        linecache.checkcache(name)
    return _parsed("".join(linecache.getlines(name)))


_parsed = functools.lru_cache(maxsize=1024)(_File)


def function_source(function: FunctionType, *, decorated: bool = True) -> SourceText:
    """Returns the source of a function. A function without source, for example after `exec`, is
    represented by its names and constants."""
    node, code = definition_of(function), function.__code__
    read, local = _names_of(code)
    if node is None:
        return SourceText(_names_and_constants(code), frozenset(read), {})
    source = _source([_without(node, decorators=not decorated)], function.__globals__)
    own = local - read - source.imports.keys()
    names = {name for name in source.names if name.partition(".")[0] not in own}
    return SourceText(source.text, frozenset(names), source.imports)


def definition_of(function: FunctionType) -> "_Function | ast.Lambda | None":
    """Returns the definition of a function, or None if it has no source."""
    code, file = function.__code__, _file_at(function.__code__.co_filename)
    if code.co_name == "<lambda>":  # Of nested lambdas, the innermost one counts.
        definitions = [each for each in ast.walk(file.tree) if isinstance(each, ast.Lambda)]
        return next((each for each in reversed(definitions) if _is_lambda_of(each, code)), None)
    node = file.definitions.get((code.co_name, code.co_firstlineno))
    return node if isinstance(node, _Function) else None


def class_source(kind: type) -> SourceText:
    """Returns the source of a class's own definition, without its bases."""
    scope = scope_of(kind)
    functions = [each for each in vars(kind).values() if isinstance(each, FunctionType)]
    files = [str(scope.get("__file__", "")), *(each.__code__.co_filename for each in functions)]
    definitions = _file_at(next(filter(None, files), "")).definitions
    nodes = [each for each in definitions.values() if _is_class(each, kind.__name__)]
    if len(nodes) > 1:  # The file has other functions of this name.
        lines = [each.__code__.co_firstlineno for each in functions]
        nodes = [each for each in nodes if any(_has(each, line) for line in lines)] or nodes
    if not nodes:
        return SourceText(repr([function_source(each).text for each in functions]), frozenset(), {})
    return _source([_without(each) for each in nodes], scope)


def scope_of(kind: type) -> Scope:
    return vars(sys.modules[kind.__module__]) if kind.__module__ in sys.modules else {}


def variable_source(name: str, scope: Scope) -> tuple[SourceText, Scope]:
    """Returns the source of the statements that set a variable, and the variables of the module
    with these statements. For an imported variable, both are those of the module that defines
    it."""
    statements = _file_at(str(scope.get("__file__", ""))).statements
    source = _source([each for each in statements if name in _set_by(each)], scope)
    module, original = source.imports.get(name, ("", ""))
    if module in sys.modules:
        return variable_source(original, vars(sys.modules[module]))
    return source, scope


def _source(nodes: Iterable[ast.AST], scope: Scope) -> SourceText:
    inside = [part for node in nodes for part in ast.walk(node)]
    package = str(scope.get("__package__") or "")
    imports = {name: place for part in inside for name, place in _imported(part, package)}
    return SourceText("\n".join(map(_as_text, inside)), frozenset(_names_in(inside)), imports)


def _as_text(node: ast.AST) -> str:
    """Returns the text of one node, without its child nodes: `ast.walk` visits these separately.
    Empty fields are left out, because they differ between versions of Python."""
    fields = [(name, getattr(node, name, None)) for name in node._fields]
    shown = [f"{name}={_shown(value)}" for name, value in fields if value not in (None, [])]
    return f"{type(node).__name__}({', '.join(shown)})"


def _shown(value: object) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(_shown, value))}]"
    if isinstance(value, ast.AST):
        return "."
    return hex(value) if type(value) is int else repr(value)  # `repr` refuses very long integers.


def _names_in(nodes: list[ast.AST]) -> Iterator[str]:
    """Yields each name that is read, together with the attributes read from it, such as
    `texts.PROMPT`. Leaves out attributes that are only set."""
    inner: set[ast.AST] = set()
    for node in nodes:
        if node in inner or not isinstance(node, ast.Name | ast.Attribute):
            continue
        base: ast.AST = node
        attributes: list[str] = []
        while isinstance(base, ast.Attribute):
            attributes.insert(0, base.attr)
            base = base.value
            inner.add(base)
        if isinstance(base, ast.Name) and isinstance(node.ctx, ast.Load):
            yield ".".join([base.id, *attributes])


def _names_and_constants(code: CodeType) -> str:
    constants = [
        _names_and_constants(each) if isinstance(each, CodeType) else each
        for each in code.co_consts
    ]
    return repr(
        (code.co_names, [each for each in constants if isinstance(each, str | int | float)])
    )


def _names_of(code: CodeType) -> tuple[set[str], set[str]]:
    """Returns two sets for a function and its inner functions: the names that they read from
    outside, and their local names."""
    read, local = {*code.co_names, *code.co_freevars}, {*code.co_varnames, *code.co_cellvars}
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            also_read, also_local = _names_of(inner)
            read, local = read | (also_read - local), local | also_local
    return read, local


def _imported(node: ast.AST, package: str) -> Iterator[tuple[str, tuple[str, str]]]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.asname or alias.name.partition(".")[0], (alias.name, "")
    elif isinstance(node, ast.ImportFrom) and (package or not node.level):
        module = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
        for alias in node.names:
            yield alias.asname or alias.name, (module, alias.name)


def _set_by(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.ImportFrom):
        return {alias.asname or alias.name for alias in node.names}
    inside = [each for each in ast.walk(node) if isinstance(each, ast.Name)]
    return {each.id for each in inside if isinstance(each.ctx, ast.Store)}


def _is_class(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.ClassDef) and node.name == name


def _is_lambda_of(node: ast.Lambda, code: CodeType) -> bool:
    """Returns whether `code` was compiled from this lambda: all of its instructions lie in the
    lambda's body. Instructions that stand for no characters of the source are ignored."""
    body = node.body
    start, end = (body.lineno, body.col_offset), (body.end_lineno, body.end_col_offset)
    places = [each for each in code.co_positions() if None not in each and each[2] != each[3]]
    return bool(places) and all(start <= (a, c) and (b, d) <= end for a, b, c, d in places)


def _has(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _without(node: _Defined, *, decorators: bool = False) -> ast.AST:
    """Returns the definition without the evaluations in its body and, with `decorators`, without
    its decorators."""
    if isinstance(node, ast.Lambda):
        return node
    node = copy.copy(node)
    if decorators:
        node.decorator_list = []
    node.body = [each for each in node.body if not _is_evaluation(each)]
    return node


def _is_evaluation(node: ast.AST) -> bool:
    decorators = getattr(node, "decorator_list", [])
    called = [each.func if isinstance(each, ast.Call) else each for each in decorators]
    return _EVALUATION in [getattr(each, "attr", getattr(each, "id", "")) for each in called]
