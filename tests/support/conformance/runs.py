"""Whole runs against an engine under test."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from support.conformance.engines import (
    Engine,
)
from support.fork_server import run

AGENT = '''
import holdfast


@holdfast.tool(contract="idempotent")
def multiply(a: int, b: int) -> int:
    """Multiplies two numbers."""
    return a * b


async def solve(t: holdfast.Rollout) -> None:
    t.add(*t.task.messages)
    for turn in range(3):
        reply = await t.generate(tools=[multiply])
        for call in reply.tool_calls:
            await t.tool(call, multiply)
        t.add(f"That has {len(reply.text)} characters. Go on, turn {turn}.")


def score(trajectory: holdfast.TrajectoryView) -> float:
    return sum(len(turn.step.message.text) for turn in trajectory.turns) / 100
'''
TASKS, SAMPLES, TURNS = 4, 3, 3
TOKENS = 20
KILLS = ("after:14", "before:19")


class Done(NamedTuple):
    code: int
    out: str
    err: str


class CommandLine:
    """A folder with a rollout and tasks, and the commands of a user in it."""

    def __init__(self, place: Path, engine: Engine):
        self.place = place
        self.engine = engine
        (place / "agent.py").write_text(AGENT)
        lines = [
            json.dumps({"id": f"t{i}", "prompt": f"What is {i + 2} * {7 * i + 3}?"})
            for i in range(TASKS)
        ]
        (place / "tasks.jsonl").write_text("\n".join(lines))

    def holdfast(self, *arguments: object, crash: str = "") -> Done:
        done = run(
            [sys.executable, "-m", "holdfast", *(str(word) for word in arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=240,
            cwd=self.place,
            env=os.environ | ({"HOLDFAST_CRASH": crash} if crash else {}),
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def run(self, name: str, *extra: object, crash: str = "") -> Done:
        arguments: list[object] = [
            *("run", "agent.py", "--tasks", "tasks.jsonl", "--samples", SAMPLES, "--run", name),
            *("--journal", f"{name}.db", "--policy", self.engine.server.url, "--quiet"),
            *("--seed", 7, "--max-tokens", TOKENS, "--temperature", 1.0),
        ]
        if self.engine.named is not None:
            arguments += ["--dialect", self.engine.named]
        if self.engine.tokenizer is not None:
            arguments += ["--tokenizer", self.engine.tokenizer, "--renderer", "template"]
        return self.holdfast(*arguments, *extra, crash=crash)

    def killed_and_resumed(self, name: str, *extra: object) -> None:
        for plan in KILLS:
            assert self.run(name, *extra, crash=plan).code == -signal.SIGKILL
        done = self.run(name, *extra)
        assert done.code == 0, done.err

    def export(self, name: str) -> bytes:
        (self.place / f"{name}.jsonl").unlink(missing_ok=True)
        done = self.holdfast(
            *("export", name, "--what", "samples", "--out", f"{name}.jsonl"),
            *("--journal", f"{name}.db"),
        )
        assert done.code == 0, done.err
        return (self.place / f"{name}.jsonl").read_bytes()
