"""Every command of the tutorial, and of the README's beginning, is run, and prints what the page
shows."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from support.paths import ROOT

INSTALLS = ("python3 -m venv", "pip install")
"""Commands that `make package` runs."""
KILLED = "^C"
"""The line below a command that is to be killed."""


class Command(NamedTuple):
    words: str
    shown: list[str]
    """The lines that the page shows of its output."""

    @property
    def is_killed(self) -> bool:
        return self.shown[:1] != [] and self.shown[0].startswith(KILLED)


def commands(page: Path) -> Iterator[Command]:
    text = page.read_text()
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        for command in block.split("$ ")[1:]:
            arguments, *shown = command.strip().splitlines()
            if not arguments.startswith(INSTALLS):
                yield Command(arguments, shown)


class Shell:
    """Remembers the folder that the last command left it in."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._note = folder / "folder-of-the-shell"

    def run(self, command: Command) -> tuple[int, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        crash = "after:20" if command.is_killed else ""
        script = f'{command.words}\ncode=$?\npwd > "{self._note}"\nexit $code'
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            check=False,
            env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "HOLDFAST_CRASH": crash},
        )  # fmt: skip
        self.folder = Path(self._note.read_text().strip())
        return done.returncode, done.stdout


@pytest.mark.timeout(2400)
@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_every_command_works_and_prints_what_the_page_shows(page: str, tmp_path: Path) -> None:
    shell, kills = Shell(tmp_path), 0
    for command in commands(ROOT / page):
        code, output = shell.run(command)
        kills += command.is_killed
        wanted = 128 + signal.SIGKILL if command.is_killed else 0
        assert code == wanted, f"{command.words}\n{output}"
        for line in [] if command.is_killed else command.shown:
            for part in filter(None, map(str.strip, line.split("…"))):
                assert part in output, f"{command.words}: no {part!r} in\n{output}"
    assert kills == 1


def test_the_tutorial_shows_the_files_that_init_writes() -> None:
    project = (ROOT / "src/holdfast/cli/projects/agent.txt").read_text()
    for page in ("README.md", "docs/tutorial.md"):
        (agent,) = re.findall(r"```python\n(?:# agent\.py\n)?(import holdfast\n\nscore = .*?)```",
                              (ROOT / page).read_text(), re.DOTALL)  # fmt: skip
        assert f"=== agent.py\n{agent}" in project


def test_the_tutorial_has_ten_screens() -> None:
    page = (ROOT / "docs/tutorial.md").read_text()
    titles = re.findall(r"^## (\d+)\. ", page, re.MULTILINE)
    assert titles == [str(number) for number in range(1, 11)]
    assert max(len(part.splitlines()) for part in page.split("\n## ")) <= 50
