"""Helpers of evaluations: what of a file is there for its evaluations alone.

Only what cannot have done anything when the file was imported is one: a plain function without
decorators, or a name for a plain value. And only where nothing else of the file has its name in it,
in whatever role, be it within a text: what might be found by its name counts. A file that looks
names up at run time has no helpers. What an evaluation's decorators use makes rollouts, as its
processor does, and is none.
"""

import ast
import re
from collections.abc import Iterable

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_PLAIN = (
    *(ast.Constant, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.Name, ast.UnaryOp, ast.BinOp),
    *(ast.expr_context, ast.unaryop, ast.operator, ast.JoinedStr, ast.FormattedValue),
)
"""What a plain value consists of: nothing in it is called, or asks another object."""
_LOOKS_UP = frozenset(
    {
        *("globals", "locals", "vars", "dir", "getattr", "eval", "exec", "compile", "modules"),
        *("import_module", "__import__", "__dict__", "getmembers", "getmodule", "currentframe"),
    }
)
"""Words of code that may find a function by a name that is written nowhere."""
_WORD = re.compile(r"\w+")


def drop_helpers(tree: ast.Module, evaluations: Iterable[ast.AST], root: str) -> list[ast.AST]:
    """Takes what only the bodies of `evaluations`, which are out of the tree already, use out of
    it, too; what was taken out. `root` is the name of the code that the file is read for."""
    judging, made_with = _split(evaluations)
    found = _candidates(tree)
    judged = {name: found[name] for name in _reached(_words(judging), found)}
    others = _without(tree.body, judged)
    used = _reached({root} | _words(others) | _words(made_with), judged)
    dropped = {name: nodes for name, nodes in judged.items() if name not in used}
    kept = _without(tree.body, dropped)
    if _words([*kept, *made_with]) & _LOOKS_UP:
        return []
    tree.body = kept
    return [node for nodes in dropped.values() for node in nodes]


def _split(evaluations: Iterable[ast.AST]) -> tuple[list[ast.AST], list[ast.AST]]:
    """What they do when they are called, and what they are made with."""
    judging: list[ast.AST] = []
    made_with: list[ast.AST] = []
    for node in evaluations:
        if isinstance(node, _Function):
            judging += node.body
            made_with += [*node.decorator_list, node.args]
        else:
            made_with.append(node)
    return judging, made_with


def _candidates(tree: ast.Module) -> dict[str, list[ast.stmt]]:
    found: dict[str, list[ast.stmt]] = {}
    for node in tree.body:
        if name := _plain_name(node):
            found.setdefault(name, []).append(node)
    return found


def _plain_name(node: ast.stmt) -> str:
    """The name that the statement gives, and does nothing else; "" for any other statement."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            does_more = node.decorator_list or not _is_inert(node.args)
            name = "" if does_more else node.name
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if _is_plain(value):
            pass
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if _is_plain(value):
            pass
        case _:
            name = ""
    return "" if name.startswith(("__", "pytest_")) else name


def _is_plain(value: ast.expr) -> bool:
    return all(isinstance(node, _PLAIN) for node in ast.walk(value))


def _is_inert(arguments: ast.arguments) -> bool:
    """Whether nothing is called to make the defaults; annotations may call as little."""
    return not any(isinstance(node, ast.Call | ast.NamedExpr) for node in ast.walk(arguments))


def _reached(words: set[str], found: dict[str, list[ast.stmt]]) -> set[str]:
    """The names of what these words name, and of what that names, and so on."""
    reached: set[str] = set()
    waiting = [name for name in found if name in words]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += _words(found[name]) & found.keys()
    return reached


def _without(body: list[ast.stmt], named: dict[str, list[ast.stmt]]) -> list[ast.stmt]:
    out = {node for nodes in named.values() for node in nodes}
    return [node for node in body if node not in out]


def _words(nodes: Iterable[ast.AST]) -> set[str]:
    """Every name in them, and every word of every text."""
    words: set[str] = set()
    for node in nodes:
        for part in ast.walk(node):
            for _, value in ast.iter_fields(part):
                for text in value if isinstance(value, list) else [value]:
                    if isinstance(text, str):
                        words.update(_WORD.findall(text))
    return words
