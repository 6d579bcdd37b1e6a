"""A folder of modules, written and imported as often as a test wants, as if in a new process."""

import importlib
import itertools
import linecache
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.rollout.code.fingerprint import fingerprinted

_numbers = itertools.count()
_NOT_COMPILED = {"PYTHONDONTWRITEBYTECODE": "1"}
"""Python knows a compiled file by its source's size and time in seconds. Tests write a source twice
within one."""


class Project:
    """Its modules have names that no other test uses: `§` in names and texts is its own mark."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.mark = f"project{next(_numbers)}"

    def write(self, **files: str) -> None:
        """`package__in__name` is a module of a package."""
        for name, text in files.items():
            path = self.folder / f"{self.mark}_{name.replace('__in__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace("§", f"{self.mark}_"))

    def load(self, **files: str) -> dict[str, Any]:
        """The modules of the project's top, imported anew."""
        self.write(**files)
        for name in [name for name in sys.modules if name.startswith(f"{self.mark}_")]:
            del sys.modules[name]
        importlib.invalidate_caches()
        linecache.checkcache()
        tops = [name for name in files if "__in__" not in name and name != "broken"]
        return {name: importlib.import_module(f"{self.mark}_{name}") for name in tops}

    def parts(self, **files: str) -> dict[str, str]:
        """Of `solve` in the module `agent`."""
        return fingerprinted(self.load(**files)["agent"].solve)[1].parts

    def changed(self, before: dict[str, str], **files: str) -> list[str]:
        """The names of the parts that are others when these files are written."""
        after = self.parts(**before | files)
        old = self.parts(**before)
        return sorted(name for name in {*old, *after} if old.get(name) != after.get(name))

    def python(self, *arguments: str, **env: str) -> str:
        path = [str(self.folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        done = subprocess.run(
            [sys.executable, *arguments],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path)} | _NOT_COMPILED | env,
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return Project(tmp_path)
