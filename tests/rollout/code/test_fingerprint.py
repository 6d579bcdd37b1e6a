"""A fingerprint is that of what the code does and says, in its file and in all of the user's own
modules that it imports."""

import functools
import hashlib
import importlib
import itertools
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from msgspec import structs

from holdfast.records.run import Code, RunSpec
from holdfast.records.sampling import Sampling
from holdfast.rollout.code import files as code_files
from holdfast.rollout.code.source import canonical, parse
from holdfast.rollout.processors.agent import AgentRolloutProcessor
from holdfast.rollout.processors.processor import fingerprint_of, fingerprinted
from holdfast.rollout.tools.tool import Tool

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
        solve="import asyncio, numpy, holdfast.rollout.processors.agent\nimport §library\n"
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


@pytest.mark.parametrize(
    "text",
    [
        "if A: B = 0\n" + "".join(f"elif A == {n}: B = {n}\n" for n in range(500)),
        f"B = {' + '.join(['A'] * 1_500)}\n",
        f"B = {' + '.join(['A'] * 50_000)}\n",
        f"B = {'-' * 50_000}A\n",
    ],
)
def test_code_with_a_deep_syntax_tree_has_a_fingerprint(project: Project, solve, text: str) -> None:
    evaluation = "@evaluation_test()\ndef test_it(row): ...\n"
    assert project.changed(solve, helper=text)
    assert project.changed(solve, helper=f"{text}C = 1\n")
    assert project.changed(solve, solve=f"async def solve(t): ...\n{evaluation}{text}")


def test_the_digests_that_are_recorded_stay_the_same() -> None:
    text = (
        "import a.b as c\nclass A(B, k=1):\n    'Says.'\n    x: int = {**y, 'k': [1, 2.5, None]}\n"
        "async def f(a, /, *b, c=b'x', **d):\n    global g, h\n"
        "    return f'{a!r:>{b}}' if c else ...\n"
    )
    assert hashlib.sha256(canonical(parse(text.encode()))).hexdigest()[:12] == "d0286ec08a34"
    assert hashlib.sha256(canonical(parse(b"a = \n"))).hexdigest()[:12] == "1c8e5a28eb46"


def test_a_module_without_a_file_leaves_the_others_in(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
        archive.writestr(f"{project.mark}_zipped.py", "A = 1\n")
        archive.writestr(f"{project.mark}_packed/__init__.py", "A = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path / "z.zip"))
    text = "import §zipped, §packed, §made, §helper\nasync def solve(t): ...\n"
    project.write(solve=text, made="", helper="A = 1\n")
    solve = project.load("solve").solve
    (tmp_path / f"{project.mark}_made.py").unlink()
    assert list(fingerprinted(solve)[1].files) == [
        *(f"{project.mark}_solve.py", f"{project.mark}_helper.py")
    ]
    assert project.changed(solve, solve=f"{text}CONST = 5\n")
    assert project.changed(solve, helper="A = 2\n")


def test_a_module_that_cannot_be_read_leaves_the_others_in(
    project: Project, solve, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write(helper="import §other\n", other="A = 1\n")
    read = Path.read_bytes

    def refused(path: Path) -> bytes:
        if path.name.endswith("_other.py"):
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refused)  # Who runs this may be root.
    assert project.changed(solve, helper="import §other\nA = 1\n")
    assert len(fingerprinted(solve)[1].files) == 2


def test_a_file_is_not_taken_for_a_module_of_the_same_name(project: Project) -> None:
    text = "import §rollout\nasync def solve(t): ...\n"
    project.write(rollout="A = 1\n")
    inner = project.folder / "evals" / f"{project.mark}_rollout.py"
    inner.parent.mkdir()
    inner.write_text(text.replace("§", f"{project.mark}_"))
    namespace: dict[str, object] = {"__name__": "elsewhere"}
    exec(compile("async def solve(t): ...", str(inner), "exec"), namespace)
    solve = namespace["solve"]
    name, code = fingerprinted(solve)
    assert set(code.files) == {f"evals/{inner.name}", inner.name}
    inner.write_text(inner.read_text() + "CONST = 5\n")
    assert fingerprint_of(solve) != name
    assert project.changed(solve, rollout="A = 2\n")


def test_a_module_under_two_names_is_the_same_in_every_process(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write(package__in____init__="")
    for name in "abcdefgh":
        (project.folder / f"{project.mark}_package" / f"{project.mark}_{name}.py").write_text("")
    monkeypatch.syspath_prepend(str(project.folder / f"{project.mark}_package"))
    both = ", ".join(f"§{name}, §package.§{name}" for name in "abcdefgh")
    project.write(solve=f"import {both}\nasync def solve(t): ...\n")
    program = (
        f"import {project.mark}_solve as it\nfrom holdfast.rollout.processors.processor import *\n"
    )
    found = {
        _python(project, "-c", f"{program}print(fingerprint_of(it.solve))", PYTHONHASHSEED=seed)
        for seed in "123"
    }
    assert len(found) == 1


def test_relative_imports_of_the_main_module_are_followed(project: Project) -> None:
    main = (
        "from . import helper\nfrom holdfast.rollout.processors.processor import fingerprint_of\n"
        "async def solve(t): ...\nif __name__ == '__main__': print(fingerprint_of(solve))\n"
    )
    project.write(package__in____init__="", package__in__main=main, package__in__helper="A = 1\n")
    name = f"{project.mark}_package.main"
    before = _python(project, "-m", name)
    imported = f"from {name} import *; print(fingerprint_of(solve))"
    assert _python(project, "-c", imported) == before
    project.write(package__in__helper="A = 2\n")
    assert _python(project, "-m", name) != before


def _python(project: Project, *words: str, **env: str) -> str:
    path = [str(project.folder), str(project.folder / f"{project.mark}_package")]
    path += filter(None, [os.environ.get("PYTHONPATH")])
    done = subprocess.run(
        [sys.executable, *words],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path)} | env,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


def test_what_an_installer_put_into_a_folder_is_no_part_of_it(
    project: Project, tmp_path: Path
) -> None:
    """As `pip install --target` does; what the user has beside it counts."""
    library = f"{project.mark}_library"
    project.write(
        solve="import §library.deep, §single, §helper\nasync def solve(t): ...\n",
        library__in____init__="",
        library__in__deep="A = 1\n",
        single="A = 1\n",
        helper="A = 1\n",
    )
    record = tmp_path / "thing-1.0.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text(
        f"{library}/__init__.py,sha256=x,0\n{library}/deep.py,,\n{project.mark}_single.py,,\n\n"
    )
    (tmp_path / "bare-1.0.dist-info").mkdir()
    candidate = project.unloaded("solve")
    assert not project.changed(candidate, library__in__deep="A = 2\n", single="A = 2\n")
    assert project.changed(candidate, helper="A = 2\n")
    assert len(fingerprinted(candidate)[1].files) == 2


def test_a_large_file_counts_by_its_bytes_and_is_not_parsed(
    project: Project, solve, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = f"A = '{'x' * 1_000_000}'\n"
    read: list[bytes] = []
    monkeypatch.setattr(
        code_files, "parse", lambda text, **how: read.append(text) or parse(text, **how)
    )
    assert project.changed(solve, helper=large)
    assert project.changed(solve, helper=large.replace("x'", "y'"))
    assert max(map(len, read), default=0) < 1_000_000


def test_the_file_that_the_user_named_is_part_of_it(project: Project) -> None:
    project.write(
        named="from §solver import Solver\nimport §texts\nsolve = Solver(§texts.PROMPT)\n",
        texts="PROMPT = 'be brief'\n",
        solver="class Solver:\n    def __init__(self, prompt): self.prompt = prompt\n",
    )
    named, solver = project.load("named"), project.load("solver")

    def now() -> str:
        return fingerprinted(named.solve, module=named)[0]

    before = now()
    assert fingerprinted(solver.Solver, module=solver) == fingerprinted(solver.Solver)
    project.write(texts="PROMPT = 'be verbose'\n")
    between = now()
    project.write(named="from §solver import Solver\nsolve = Solver('You are terse.')\n")
    assert len({before, between, now()}) == 3


def test_a_judge_is_its_identity_whatever_is_in_its_file(project: Project) -> None:
    text = (
        "import holdfast\nasync def solve(t): ...\n"
        "judge = holdfast.Judge('Right?', policy='http://127.0.0.1:1')\n"
        "class Own(holdfast.Judge): ...\nown = Own('Right?', policy='http://127.0.0.1:1')\n"
    )
    project.write(judged=text)
    module = project.load("judged")

    def now() -> list[str]:
        return [fingerprinted(each, module=module)[0] for each in (module.judge, module.own)]

    before = now()
    project.write(judged=text + "PROMPT = 'be brief'\n")
    after = now()
    assert after[0] == before[0] == fingerprinted(module.judge)[0]
    assert after[1] != before[1], "a class of the user's has code of its own"


def test_runs_of_older_versions_go_on_by_what_these_looked_at() -> None:
    def spec(prompt: str, count: float) -> RunSpec:
        async def rollout(t, count=count):
            return prompt

        name, code = fingerprinted(rollout)
        return RunSpec("r", 1, "m", Sampling(), None, name, "", "", "", rollout_code=code)

    def recorded(now: RunSpec) -> RunSpec:
        code = now.rollout_code
        assert code is not None
        return structs.replace(now, rollout=code.texts, rollout_code=Code(code.files, code.before))

    assert recorded(spec("a", 1)).differences(spec("a", 2)) == []
    assert recorded(spec("a", 1)).differences(spec("b", 1)) != []
    assert spec("a", 1).differences(spec("a", 2)) != []
