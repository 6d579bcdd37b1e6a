"""A folder with evaluations in it, and pytest on it."""

import asyncio
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

# An inner session forgets what it imported: imported here, nothing is imported twice.
import holdfast.embedded.child_process
import holdfast.evaluation.decorator
import holdfast.evaluation.running.experiment
import holdfast.journal.sqlite.journal
import holdfast.policy.client.replicas
import holdfast.policy.rendering.select  # noqa: F401
from holdfast.evaluation import plugin
from holdfast.journal import open_journal
from holdfast.records.history import History
from holdfast.testing import FakeEngine
from support.fork_server import Popen

HEAD = """
import pytest
from holdfast import Rollout, Score
from holdfast.evaluation import EvaluateResult, EvaluationRow, InputMetadata, Message
from holdfast.evaluation import MetricResult, NoOpRolloutProcessor, evaluation_test

ROWS = [{"id": f"r{n}", "prompt": f"What is {n}?", "ground_truth": n} for n in range(4)]
"""


class EvaluationProject:
    def __init__(self, pytester: pytest.Pytester, engine: FakeEngine):
        self.pytester = pytester
        self.engine = engine
        self.folder = pytester.path

    def write(self, source: str, name: str = "test_it.py", *, head: str = HEAD) -> Path:
        path = self.folder / name
        path.write_text(head + textwrap.dedent(source), encoding="utf-8")
        return path

    def arguments(self, *extra: object, policy: bool = True) -> list[str]:
        arguments = ["-p", "no:cacheprovider", "-W", "error"]
        arguments += ["--holdfast-summary", "summary.json"]
        arguments += ["--holdfast-policy", self.engine.url] if policy else []
        return [*arguments, *(str(item) for item in extra)]

    def run(self, *extra: object, policy: bool = True) -> pytest.RunResult:
        """In this process, with no other plugin: to find those that are installed takes longer
        than most evaluations here. Nor are compiled files kept: they are told apart by size and
        seconds, and a file is written anew within one."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "dont_write_bytecode", True)
            return self.pytester.runpytest_inprocess(
                *self.arguments(*extra, policy=policy), plugins=[plugin]
            )

    def apart(self, *extra: object) -> "subprocess.Popen[str]":
        """In a process of its own, with no other plugins than those that are named."""
        arguments = ["-p", "holdfast.evaluation.plugin", *self.arguments(*extra)]
        return Popen(
            [sys.executable, "-m", "pytest", *arguments],
            cwd=self.folder,
            env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    # --- what came of it

    def outcomes(self) -> list[dict[str, Any]]:
        evaluations: list[dict[str, Any]] = json.loads((self.folder / "summary.json").read_text())[
            "evaluations"
        ]
        return evaluations

    def only(self) -> dict[str, Any]:
        """The only run of the only evaluation."""
        (outcome,) = self.outcomes()
        (run,) = outcome["runs"]
        return dict(run)

    @property
    def journal(self) -> Path:
        return self.folder / ".holdfast" / "evaluations.db"

    def runs(self) -> dict[str, dict[str, int]]:
        """The runs of the journal, with how many rows are in which state."""

        async def read() -> dict[str, dict[str, int]]:
            journal = open_journal(str(self.journal))
            try:
                return {row.name: row.by_status for row in await journal.runs()}
            finally:
                await journal.close()

        return asyncio.run(read())

    def histories(self, run: str) -> dict[str, History]:
        """What is recorded, by `task/sample`."""

        async def read() -> dict[str, History]:
            journal = open_journal(str(self.journal))
            try:
                stored_run = await journal.find_run(run)
                assert stored_run is not None, f"there is no run {run}"
                return {
                    f"{row.key.task}/{row.key.sample}": History(log)
                    async for row, log in journal.histories(stored_run)
                }
            finally:
                await journal.close()

        return asyncio.run(read())
