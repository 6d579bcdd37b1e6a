"""`--engine vllm`: a command starts the engine that it needs, and takes it along when it ends."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.journal import open_journal
from holdfast.records.step import Generated
from support.vllm_server.stand_in import SECONDS, StandIn

pytestmark = pytest.mark.timeout(300)
ROLLOUT = """
from holdfast import Rollout
async def rollout(t: Rollout) -> None:
    t.add(*t.task.messages)
    await t.generate()
def score(view) -> float:
    return 1.0
"""


class Command:
    """`holdfast run` or `train` in a folder, with a stand-in for vLLM."""

    def __init__(self, folder: Path, *, fault: str = ""):
        self.folder = folder
        self.stand_in = StandIn(folder, fault=fault)
        (folder / "agent.py").write_text(ROLLOUT)
        (folder / "tasks.jsonl").write_text('{"id": "a", "prompt": "hello"}\n')

    def words(self, name: str, *more: str) -> list[str]:
        command = [sys.executable, "-m", "holdfast", name, "agent.py", "--tasks", "tasks.jsonl"]
        command += ["--run", "first", "--engine", "vllm"]
        return [*command, "--engine-python", str(self.stand_in.python), *more]

    def do(self, name: str, *more: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self.words(name, *more), cwd=self.folder, env=self.stand_in.environment,
            capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip

    async def replies(self) -> list[Generated]:
        async with open_journal(str(self.folder / "holdfast.db")) as journal:
            run = await journal.find_run("first")
            assert run is not None
            return [
                record
                async for _, records in journal.histories(run)
                for record in records
                if isinstance(record, Generated)
            ]


def test_a_run_starts_vllm_and_ends_it(tmp_path: Path) -> None:
    command = Command(tmp_path)
    done = command.do("run", "--max-tokens", "8")
    assert done.returncode == 0, done.stderr
    assert "starting vLLM" in done.stderr
    assert "engine: vllm 0.32.0, started here (port " in done.stderr
    (reply,) = asyncio.run(command.replies())
    assert (reply.dialect, reply.model) == ("vllm-generate", "tiny")
    command.stand_in.wait_until_gone()


@pytest.mark.parametrize("fault", ["", "waits"], ids=["while it serves", "while it starts"])
def test_a_run_that_is_killed_leaves_no_vllm(fault: str, tmp_path: Path) -> None:
    command = Command(tmp_path, fault=fault)
    with subprocess.Popen(
        command.words("run", "--max-tokens", "100000"), cwd=tmp_path,
        env=command.stand_in.environment, stderr=subprocess.DEVNULL,
    ) as run:  # fmt: skip
        command.stand_in.started()
        run.send_signal(signal.SIGKILL)
        run.wait(SECONDS)
        command.stand_in.wait_until_gone()


@pytest.mark.parametrize("name", ["run", "train"])
def test_an_engine_to_start_and_one_that_runs_are_not_named_together(
    name: str, tmp_path: Path
) -> None:
    out = ("--out", "out") if name == "train" else ()
    done = Command(tmp_path).do(name, *out, "--policy", "http://127.0.0.1:9")
    assert done.returncode == 2
    assert "--engine vllm starts an engine, and --policy names one that runs" in done.stderr


def test_a_training_whose_vllm_cannot_load_the_model_ends_with_its_words(tmp_path: Path) -> None:
    (tmp_path / "stand_in").mkdir()
    command = Command(tmp_path / "stand_in", fault="fails")
    done = command.do("train", "--out", "out", "--groups", "1", "--steps", "1")
    assert done.returncode == 2, done.stderr
    assert "ValueError: No weights in /models/broken" in done.stderr.splitlines()[-1]
    assert "Loading model weights" in (command.folder / "out" / "engine.log").read_text()
