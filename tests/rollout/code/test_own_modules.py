"""Which code is the user's own."""

import asyncio
import functools
import json
from pathlib import Path

import numpy
import pytest

from holdfast.rollout.code.source import import_own, is_own
from holdfast.rollout.context import Rollout
from support.rollout.project import Project


def test_what_is_in_a_file_of_the_user_is_and_in_a_library_is_not(project: Project) -> None:
    module = project.load(agent="class Agent: ...\ndef solve(t): ...\n")["agent"]
    assert all(map(is_own, (module, module.Agent, module.solve)))
    others = (json, json.dumps, str, Rollout, asyncio.gather, numpy, numpy.ndarray, functools.wraps)
    assert not any(map(is_own, others))


def test_a_function_of_a_library_stays_one_under_the_name_of_another(project: Project) -> None:
    solve = project.load(agent="def solve(t): ...\n")["agent"].solve
    assert not is_own(functools.wraps(solve)(json.dumps))


def test_what_is_in_no_file_is_the_users() -> None:
    namespace: dict[str, object] = {"__name__": "__main__"}
    exec("def solve(t): ...\nclass Agent: ...", namespace)
    assert is_own(namespace["solve"])  # type: ignore[arg-type]
    assert is_own(namespace["Agent"])  # type: ignore[arg-type]


def test_installed_packages_are_not(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = project.folder / "lib" / "site-packages"
    installed.mkdir(parents=True)
    (installed / f"{project.mark}_library.py").write_text("def look(): ...\n")
    monkeypatch.syspath_prepend(str(installed))
    agent = project.load(agent="from §library import look\n")["agent"]
    assert not is_own(agent.look)


def test_what_an_installer_put_beside_the_users_files_is_not(project: Project) -> None:
    """As `pip install --target` does."""
    record = project.folder / "thing-1.0.dist-info" / "RECORD"
    record.parent.mkdir()
    library = f"{project.mark}_library"
    record.write_text(f"{library}/__init__.py,sha256=x,0\n{library}/deep.py,,\n\n")
    (project.folder / "bare-1.0.dist-info").mkdir()
    agent = project.load(
        library__in____init__="",
        library__in__deep="def look(): ...\n",
        helper="def look(): ...\n",
        agent="import §library.deep as deep, §helper as helper\n",
    )["agent"]
    assert not is_own(agent.deep)
    assert is_own(agent.helper)


def test_only_modules_of_the_user_are_imported_for_a_look(project: Project, tmp_path: Path) -> None:
    project.load(helper="A = 1\n", broken="1 / 0\n", agent="")
    assert import_own(f"{project.mark}_helper").A == 1  # type: ignore[union-attr]
    for name in (f"{project.mark}_broken", "json", "numpy.linalg", "nowhere", "nowhere.at.all"):
        assert import_own(name) is None
