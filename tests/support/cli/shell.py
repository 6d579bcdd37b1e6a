"""`holdfast` as a user runs it: a child process in a folder of its own."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.journal.damage.check import check
from holdfast.records.exit_codes import Exit
from support.fork_server import Popen

HANGING = 240.0
"""Seconds after which a command hangs, also on a busy machine."""

AGENT = """
import os
import holdfast


@holdfast.tool(contract="idempotent")
async def look_up(word: str) -> str:
    return f"{word} means {len(word)}"


async def solve(t: holdfast.Rollout) -> None:
    t.add(*t.task.messages)
    reply = await t.generate(max_tokens=12)
    found = await t.tool(look_up.call(word=reply.text[:4]), look_up)
    t.add(f"so: {found.content}")
    await t.generate()
    if t.task.id.startswith("bug") and t.key.sample == 0 and "MENDED" not in os.environ:
        raise KeyError(f"a bug in {t.task.id}")
    if t.task.id.startswith("long"):
        t.truncate("max_turns")


def score(trajectory: holdfast.TrajectoryView) -> float:
    return sum(len(turn.step.message.text) for turn in trajectory.turns) / 100
"""


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The one line that is all that was said on standard error."""
        (line,) = self.err.splitlines()
        return line


def start(
    *arguments: object, cwd: Path, env: dict[str, str] | None = None, forked: bool = True
) -> "subprocess.Popen[str]":
    """`forked`: from the fork server, without its imports. Else it is a process like any other."""
    popen = Popen if forked else subprocess.Popen
    return popen(
        [sys.executable, "-m", "holdfast", *(str(word) for word in arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=os.environ | {"PYTHONIOENCODING": "utf-8"} | (env or {}),
    )


def end(process: "subprocess.Popen[str]") -> Done:
    try:
        out, err = process.communicate(timeout=HANGING)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # Python then prints what each thread is doing.
        out, err = process.communicate()
        pytest.fail(f"{process.args} hangs:\n{out}\n{err}")
    return Done(process.returncode, out, err)


class CommandLine:
    """A folder with a rollout and tasks, an engine, and the commands of a user in it."""

    def __init__(self, place: Path, engine):
        self.place = place
        self.engine = engine
        self.journal = place / "holdfast.db"
        self.write("agent.py", AGENT)
        self.tasks("sum", "long-one")

    def write(self, name: str, text: str) -> Path:
        path = self.place / name
        path.write_text(text)
        return path

    def tasks(self, *ids: str, file: str = "tasks.jsonl") -> Path:
        lines = [json.dumps({"id": name, "prompt": f"do {name}"}) for name in ids]
        return self.write(file, "".join(f"{line}\n" for line in lines))

    def arguments(
        self, *extra: object, rollout: str = "agent.py", **options: object
    ) -> list[object]:
        environment = {
            "tasks": "tasks.jsonl",
            "policy": self.engine.url,
            "model": self.engine.model,
            "run": "r",
            "seed": 7,
        } | options
        pairs = [word for name, value in environment.items() for word in (f"--{name}", value)]
        return ["run", rollout, *pairs, *extra]

    def holdfast(self, *arguments: object, env: dict[str, str] | None = None) -> Done:
        return end(start(*arguments, cwd=self.place, env=env))

    def run(
        self,
        *extra: object,
        rollout: str = "agent.py",
        env: dict[str, str] | None = None,
        **options: object,
    ) -> Done:
        return self.holdfast(*self.arguments(*extra, rollout=rollout, **options), env=env)

    def finished_run(self, *extra: object, **options: object) -> Done:
        """One with an end, be it that nothing succeeded."""
        done = self.run(*extra, **options)
        assert done.code in (Exit.OK, Exit.NOTHING), done.err
        return done

    def export(self, what: str = "samples", *extra: object, run: str = "r") -> bytes:
        """What is written; nothing, where there are no rows."""
        out = self.place / f"{what}.out"
        out.unlink(missing_ok=True)
        done = self.holdfast("export", run, "--what", what, "--out", out, *extra)
        assert done.code == (Exit.OK if out.exists() else Exit.EMPTY), done.err
        return out.read_bytes() if out.exists() else b""

    def recorded(self) -> dict[str, list[tuple[object, ...]]]:
        """Everything in the journal that is data; it has to be whole."""
        assert not check(self.journal).findings
        with closing(sqlite3.connect(f"file:{self.journal}?mode=ro", uri=True)) as connection:
            return {
                table: connection.execute(f"SELECT * FROM {table} ORDER BY rowid").fetchall()
                for table in ("runs", "tasks", "trajectories", "records", "cuts", "deliveries")
            }

    def damage(self, sql: str) -> None:
        """Changes the file behind Holdfast's back."""
        with closing(sqlite3.connect(self.journal)) as connection, connection:
            assert connection.execute(sql).rowcount > 0
