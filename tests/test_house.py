"""The house: every class has a name of its own, every room is small and says what is in it."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

import holdfast
from support.paths import TESTS

SOURCE = Path(holdfast.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
ROOMS = sorted({file.parent for file in MODULES})

MAX_MODULES = 16
MAX_LINES = 600

TWICE = {
    "AgentRolloutProcessor": "takes an MCP configuration there",
    "RemoteRolloutProcessor": "speaks eval-protocol's own protocol there",
    "RolloutProcessor": "takes rows there",
    "SingleTurnRolloutProcessor": "takes rows there",
    "FunctionCall": "a pydantic model there",
    "Message": "a pydantic model there",
    "Status": "a code of AIP-193 there",
}
"""Class names that stand twice: in `holdfast.evaluation` they are eval-protocol's, which users
import by these names. Why they are no one class."""

MUTUAL = {
    "cli.commands / cli.commands.cluster",
    "environments.workspace / environments.workspace.sandbox",
    "environments.workspace / environments.workspace.snapshots",
    "gateway / gateway.http",
    "gateway.wires / gateway.wires.anthropic",
    "gateway.wires / gateway.wires.openai",
    "gateway.wires / gateway.wires.responses",
    "records / records.encoding",
    "records / records.samples",
    "rollout.episodes / rollout.replay",
    "rollout.tools / rollout.tools.isolated",
    "testing.fake_engine / testing.fake_engine.wires",
    "training / training.model",
    "training / training.objective",
    "training / training.run",
    "weights / weights.strategies",
}
"""Rooms that import each other. This list may only become shorter."""


PRIVATE_WORDS = {"found": 60, "one": 5, "told": 5, "said": 5, "asked": 5, "words": 12}
"""Names of variables that do not say what they hold, and how often the source may still define
each. The numbers may only become smaller."""

ALLOWED_IN_TESTS = 12
"""How many of them tests may still define, of all words together. It may only become smaller."""


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE.parent))


def modules_in(room: Path) -> list[str]:
    """What a room's docstring has to name: its modules and its rooms."""
    inside = [file.stem for file in room.glob("*.py") if not file.stem.startswith("__")]
    return inside + [folder.name for folder in ROOMS if folder.parent == room]


def test_no_public_class_name_stands_twice() -> None:
    fields: dict[str, list[str]] = {}
    for file in MODULES:
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                fields.setdefault(node.name, []).append(name_of(file))
    twice = {name: files for name, files in fields.items() if len(files) > 1}
    assert twice.keys() == TWICE.keys(), twice
    for files in twice.values():
        assert [file.startswith("holdfast/evaluation/") for file in files].count(True) == 1, files


@pytest.mark.parametrize("room", ROOMS, ids=name_of)
def test_a_room_has_few_modules_and_its_docstring_names_them(room: Path) -> None:
    modules = [file for file in room.glob("*.py") if not file.stem.startswith("__")]
    assert len(modules) <= MAX_MODULES
    docstring = ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""
    named = set(re.findall(r"\w+", docstring))
    assert set(modules_in(room)) <= named


def imported_by(module: Path) -> set[str]:
    """The dotted names that it imports of ours, also in functions and for type checkers alone."""
    names = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if name.startswith("holdfast.")}


def room_of(name: str) -> str:
    """The room of the module that a dotted name is, or is in; "" for the package's own modules."""
    path = SOURCE.parent.joinpath(*name.split("."))
    while not path.is_dir():
        path = path.parent
    return ".".join(path.relative_to(SOURCE).parts)


def test_no_two_rooms_import_each_other() -> None:
    """One of two rooms is above the other. A room's `__init__` lists what it offers, and
    `__main__` starts the command: neither counts as a module that imports."""
    imports = {
        (room_of(".".join(file.parent.relative_to(SOURCE.parent).parts)), room_of(name))
        for file in MODULES
        if file.stem not in ("__init__", "__main__")
        for name in imported_by(file)
    }
    mutual = {f"{a} / {b}" for a, b in imports if a < b and (b, a) in imports}
    assert mutual == MUTUAL


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_a_module_is_not_too_long(module: Path) -> None:
    assert len(module.read_text().splitlines()) <= MAX_LINES


def test_no_test_imports_another() -> None:
    for file in TESTS.rglob("*.py"):
        assert not re.search(r"^\s*(from|import) test_", file.read_text(), re.MULTILINE), file


def test_a_room_of_tests_is_a_room_of_the_source() -> None:
    """A change finds its test: `a/b.py` is tested in `tests/a/test_b.py`."""
    own = {"conformance", "crash", "examples", "golden", "simulation", "support", "wire"}
    for folder in (file.parent for file in TESTS.rglob("test_*.py")):
        room = folder.relative_to(TESTS)
        assert not room.parts or room.parts[0] in own or (SOURCE / room).is_dir(), room


def private_words(folder: Path) -> Counter[str]:
    """How often each private word names a variable or an argument."""
    nodes = (
        node for file in folder.rglob("*.py") for node in ast.walk(ast.parse(file.read_text()))
    )
    names = (
        node.arg if isinstance(node, ast.arg) else node.id
        for node in nodes
        if isinstance(node, ast.arg)
        or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    )
    return Counter(name for name in names if name in PRIVATE_WORDS)


def test_variables_are_named_after_what_they_hold() -> None:
    defined = private_words(SOURCE)
    assert all(defined[word] <= allowed for word, allowed in PRIVATE_WORDS.items()), defined
    assert private_words(TESTS).total() <= ALLOWED_IN_TESTS
