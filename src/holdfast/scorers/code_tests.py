"""`CodeTests`: scores a program by running tests in the sandbox of a workspace."""

import asyncio
import importlib.util
import re
import textwrap
from collections.abc import Mapping
from pathlib import PurePath
from typing import cast

from holdfast.engine.scoring.scorer import Score, shown
from holdfast.environments.workspace.sandbox.sandbox import Isolation, choose
from holdfast.environments.workspace.scoring import PYTEST
from holdfast.environments.workspace.workspace import Workspace
from holdfast.records.errors import UsageError
from holdfast.rollout.episodes.environment import Observation
from holdfast.scorers.answers import ReadyScorer

MAX_OUTPUT = 2000
"""The most characters of the tests' output that are kept as the reason of a score."""
_SECONDS = re.compile(r" in [\d.]+s\b")
"""The part of pytest's output that differs each time."""
_FENCED = re.compile(r"```[\w+-]*[ \t]*\n(.*?)```", re.DOTALL)


class CodeTests(ReadyScorer, frozen=True):
    """The reward is 1 if the program in the reply passes the task's tests. With `partial`, it is
    the share of passed tests.

    The program is the last block in backticks, or the whole reply if there is no such block. It is
    written to `file` in a new workspace with the tests, and `command` runs there, in the sandbox
    that `docs/workspace.md` describes. The ground truth holds the tests: the text of a pytest file;
    a list of statements, each of which is a test that can use all names of `file`; or a dict of
    files and their texts.
    """

    IS_ITS_IDENTITY = True
    command: str = "python -m pytest -q"
    file: str = "solution.py"
    partial: bool = False
    timeout: float = 60.0
    sandbox: Isolation = Isolation.AUTO

    async def check_before_run(self, *, samples: int = 1) -> str:
        """Raises an error if pytest or the sandbox is missing, because every program would then
        fail its tests."""
        del samples
        if PYTEST.search(self.command) and importlib.util.find_spec("pytest") is None:
            raise UsageError("CodeTests runs pytest, which is not installed: pip install pytest")
        await asyncio.to_thread(choose, self.sandbox)
        return ""

    async def score(self, reply: str, wanted: dict[str, str]) -> Score:
        blocks = _FENCED.findall(reply)
        workspace = Workspace(
            {self.file: blocks[-1] if blocks else reply},
            sandbox=self.sandbox,
            command_timeout=self.timeout,
        )
        await workspace.reset(seed=0)
        try:
            return self._read(
                await workspace.step(workspace.scoring(self.command, wanted, keep=[self.file]))
            )
        finally:
            await workspace.close()

    def _read(self, result: Observation) -> Score:
        counts = {
            name: float(cast("int", result.info[name]))
            for name in ("passed", "failed", "errors")
            if name in result.info
        }
        reward = float(result.reward or 0.0)
        if self.partial and counts:
            reward = counts["passed"] / max(1.0, sum(counts.values()))
        output = _SECONDS.sub("", str(result.info["output"]))[-MAX_OUTPUT:]
        return Score(reward, counts, {"output": output})

    def wanted(self, ground_truth: object) -> dict[str, str]:
        tests = self._files(ground_truth)
        for name, text in tests.items():
            if name.endswith(".py"):
                _check_python(name, text)
        return tests

    def _files(self, ground_truth: object) -> dict[str, str]:
        stem = PurePath(self.file).stem
        if isinstance(ground_truth, str) and ground_truth:
            return {f"test_{stem}.py": ground_truth}
        if isinstance(ground_truth, Mapping) and ground_truth and _are_texts(ground_truth.values()):
            return dict(ground_truth)
        if isinstance(ground_truth, list | tuple) and ground_truth and _are_texts(ground_truth):
            tests = [
                f"def test_{number}():\n{textwrap.indent(each.strip(), '    ')}\n"
                for number, each in enumerate(ground_truth, 1)
            ]
            return {f"test_{stem}.py": "\n\n".join([f"from {stem} import *\n", *tests])}
        raise UsageError(
            "CodeTests wants a ground_truth that is the text of a test file, a list of statements, "
            f"or a dict of files, not {shown(ground_truth)}"
        )


def _are_texts(values: object) -> bool:
    return all(isinstance(each, str) for each in cast("list[object]", values))


def _check_python(name: str, text: str) -> None:
    """Raises `UsageError` if a test file is not valid Python, because every program would then fail
    its tests."""
    try:
        compile(text, name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"the test file {name} is not Python: {error}") from None
