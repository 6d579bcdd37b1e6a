"""A fingerprint is that of what the code does and says, in its file and in all of the user's own
modules that it imports."""

import functools
import importlib
import itertools
import sys
from pathlib import Path

import pytest

from holdfast.rollout.agent import AgentRolloutProcessor
from holdfast.rollout.processor import fingerprint_of, fingerprinted
from holdfast.rollout.tool import Tool

_numbers = itertools.count()


class Project:
    """A folder of modules whose names no other test uses: `§` in names and texts is its own."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.mark = f"project{next(_numbers)}"

    def write(self, **files: str) -> None:
        for name, text in files.items():
            path = self.folder / f"{self.mark}_{name.replace('__in__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace("§", f"{self.mark}_"))

    def load(self, name: str) -> object:
        return importlib.import_module(f"{self.mark}_{name}")

    def unloaded(self, name: str) -> object:
        """A function of that file, of which nothing was imported."""
        namespace: dict[str, object] = {"__name__": "elsewhere"}
        file = self.folder / f"{self.mark}_{name}.py"
        exec(compile("async def solve(t): ...", str(file), "exec"), namespace)
        return namespace["solve"]

    def changed(self, candidate: object, **files: str) -> bool:
        """Whether the fingerprint is another one when these files are written."""
        before = fingerprint_of(candidate)
        self.write(**files)
        return fingerprint_of(candidate) != before


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.syspath_prepend(str(tmp_path))
    return Project(tmp_path)


@pytest.fixture
def solve(project: Project):
    project.write(
        solve="import §helper\n\nasync def solve(t):\n    t.add(§helper.PROMPT)\n",
        helper="PROMPT = 'be brief'\n",
    )
    return project.load("solve").solve


def test_a_prompt_in_a_helper_is_part_of_it(project: Project, solve) -> None:
    assert project.changed(solve, helper="PROMPT = 'be verbose'\n")
    name, code = fingerprinted(solve)
    assert name.startswith("solve@")
    assert list(code.files) == [f"{project.mark}_solve.py", f"{project.mark}_helper.py"]


def test_comments_and_white_space_are_no_part_of_it(project: Project, solve) -> None:
    assert not project.changed(solve, helper="# Short.\n\nPROMPT   = (\n    'be brief')  # so\n")
    rollout = "import §helper\n# Now\nasync def solve(t):\n\n    t.add( §helper.PROMPT )\n"
    assert not project.changed(solve, solve=rollout)


def test_docstrings_are_part_of_it_since_models_are_shown_them(project: Project, solve) -> None:
    assert project.changed(solve, helper="'''Hm.'''\nPROMPT = 'be brief'\n")


@pytest.mark.parametrize(
    "rollout",
    [
        "from §helper import PROMPT\nasync def solve(t): ...\n",
        "async def solve(t):\n    import §helper\n",
        "async def solve(t):\n    if t:\n        from §helper import PROMPT\n",
        "import importlib\nasync def solve(t):\n    importlib.import_module('§helper')\n",
        "import §between\nasync def solve(t): ...\n",
        "from §package import deep\nasync def solve(t): ...\n",
        "import §package.deep.er\nasync def solve(t): ...\n",
        "from §package.relative import x\nasync def solve(t): ...\n",
    ],
)
def test_every_way_to_import_is_followed(project: Project, rollout: str) -> None:
    project.write(
        solve=rollout,
        helper="PROMPT = 'be brief'\n",
        between="import json\nfrom §helper import PROMPT\n",
        package__in____init__="",
        package__in__deep__in____init__="import §helper\n",
        package__in__deep__in__er="",
        package__in__relative="from .deep import er as x\nfrom . import deep\n",
    )
    solve = project.load("solve").solve
    assert project.changed(solve, helper="PROMPT = 'be verbose'\n")
    assert project.changed(solve, solve=f"{rollout}\nX = 1\n")


def test_a_package_that_is_imported_on_the_way_is_part_of_it(project: Project) -> None:
    project.write(
        solve="from §package.inner import deep\nasync def solve(t): ...\n",
        package__in____init__="",
        package__in__inner__in____init__="",
        package__in__inner__in__deep="from .. import sibling\nfrom ...nowhere import x\n",
        package__in__sibling="A = 1\n",
    )
    candidate = project.unloaded("solve")  # Importing it would fail, which is not our matter here.
    assert project.changed(candidate, package__in____init__="B = 1\n")
    assert project.changed(candidate, package__in__inner__in____init__="B = 1\n")
    assert project.changed(candidate, package__in__sibling="A = 2\n")


def test_modules_that_import_each_other_are_read_once(project: Project) -> None:
    project.write(
        solve="import §helper\nasync def solve(t): ...\n",
        helper="import §solve, §helper\nA = 1\n",
    )
    solve = project.load("solve").solve
    assert len(fingerprinted(solve)[1].files) == 2
    assert project.changed(solve, helper="import §solve, §helper\nA = 2\n")


def test_where_the_files_lie_is_no_part_of_it(
    project: Project, solve, tmp_path_factory, monkeypatch
) -> None:
    here = fingerprint_of(solve)
    there = Project(tmp_path_factory.mktemp("there"))
    there.mark = project.mark
    for name in (f"{project.mark}_solve", f"{project.mark}_helper"):
        (there.folder / f"{name}.py").write_bytes((project.folder / f"{name}.py").read_bytes())
        del sys.modules[name]
    monkeypatch.syspath_prepend(str(there.folder))
    moved = there.load("solve").solve
    assert Path(moved.__code__.co_filename).parent == there.folder
    assert fingerprint_of(moved) == here


def test_installed_packages_and_holdfast_are_no_part_of_it(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "lib" / "site-packages"
    installed.mkdir(parents=True)
    monkeypatch.syspath_prepend(str(installed))
    (installed / f"{project.mark}_library.py").write_text("A = 1\n")
    project.write(
        solve="import asyncio, numpy, holdfast.rollout.agent\nimport §library\n"
        "async def solve(t): ...\n"
    )
    solve = project.load("solve").solve
    before = fingerprint_of(solve)
    (installed / f"{project.mark}_library.py").write_text("A = 2\n")
    assert fingerprint_of(solve) == before
    assert list(fingerprinted(solve)[1].files) == [f"{project.mark}_solve.py"]


def test_what_a_judge_alone_imports_is_no_part_of_the_rollout(project: Project) -> None:
    text = (
        "import §judge\nimport §helper\n"
        "from holdfast.evaluation.pytest import evaluation_test\n"
        "async def solve(t): t.add(§helper.PROMPT)\n"
        "@evaluation_test()\ndef test_it(row): return §judge.score(row, §helper.PROMPT)\n"
    )
    project.write(solve=text, judge="def score(row, prompt): return 1\n", helper="PROMPT = ''\n")
    candidate = project.unloaded("solve")
    assert not project.changed(candidate, judge="def score(row, prompt): return 2\n")
    assert project.changed(candidate, helper="PROMPT = 'be brief'\n")


def test_the_modules_of_a_processors_tools_are_part_of_it_and_named(project: Project) -> None:
    project.write(
        tools="import §texts\ndef look(word: str) -> str:\n    'Looks.'\n    return §texts.FOUND\n",
        texts="FOUND = 'found'\n",
    )
    processor = AgentRolloutProcessor(tools=[Tool(project.load("tools").look)])
    assert project.changed(processor, texts="FOUND = 'lost'\n")
    assert f"{project.mark}_texts.py" in fingerprinted(processor)[1].files


async def told(t, prompt: str, turns: int = 1): ...


def made(prompt: str, count: int = 0):
    async def rollout(t):
        nonlocal count
        count += 1
        return prompt

    return rollout


def test_simple_arguments_of_a_partial_and_closed_over_texts_are_part_of_it() -> None:
    def partial(*args: object, **keywords: object) -> str:
        return fingerprint_of(functools.partial(told, *args, **keywords))

    assert partial(prompt="a") == partial(prompt="a") != partial(prompt="b")
    assert partial(prompt="a", turns=1) != partial(prompt="a", turns=2)
    assert partial(prompt=["a"]) != partial(prompt=["b"])
    assert partial(prompt=object()) == partial(prompt=object())
    assert fingerprint_of(made("a")) == fingerprint_of(made("a", 3)) != fingerprint_of(made("b"))


def test_a_file_that_is_no_python_has_a_fingerprint_all_the_same(project: Project, solve) -> None:
    assert project.changed(solve, helper="PROMPT = \n")
