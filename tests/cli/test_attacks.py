"""Keys in addresses, and an engine of the run's own that is killed, or outlives who started it."""

import importlib.util
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.records.exit_codes import Exit
from support.cli.shell import CommandLine, Done, end, start
from support.processes import is_alive

CANARY = "tkn4f9a8b7c6d5e"
NOWHERE = "127.0.0.1:9"
USERS = {"token alone": f"{CANARY}@", "no user": f":{CANARY}@", "both": f"me:{CANARY}@"}


def address(user: str, host: str = NOWHERE) -> str:
    return f"http://{user}{host.removeprefix('http://')}"


def everything(shell: CommandLine, done: Done) -> str:
    """What left the process, in one string."""
    files = b"".join(path.read_bytes() for path in shell.place.glob("holdfast.db*"))
    return done.out + done.err + files.decode("utf-8", "replace")


@pytest.mark.parametrize("user", USERS.values(), ids=USERS)
@pytest.mark.parametrize("more", [(), ("--json",)], ids=["text", "json"])
def test_a_key_in_the_address_of_an_engine_that_is_down_is_not_shown(
    shell: CommandLine, user: str, more: tuple[str, ...]
) -> None:
    done = shell.holdfast("policy", "check", address(user), *more)
    assert done.code != Exit.OK
    assert "[redacted]@" in done.err
    assert CANARY not in done.out + done.err


@pytest.mark.parametrize("user", USERS.values(), ids=USERS)
def test_a_key_in_the_address_of_a_run_is_not_shown(shell: CommandLine, user: str) -> None:
    done = shell.run("--patience", 0, policy=address(user))
    assert done.code != Exit.OK
    assert "[redacted]@" in done.err
    assert CANARY not in everything(shell, done)


@pytest.mark.parametrize("user", USERS.values(), ids=USERS)
def test_a_key_in_the_address_of_a_run_that_goes_well_is_nowhere(
    shell: CommandLine, user: str
) -> None:
    shell.tasks("sum")
    done = shell.finished_run("--renderer", "bytes", policy=address(user, shell.engine.url))
    assert CANARY not in everything(shell, done)
    assert CANARY not in shell.export("trajectories").decode()


@pytest.mark.parametrize("more", [(), ("--json",)], ids=["text", "json"])
def test_a_key_in_the_address_of_an_engine_that_answers_is_not_shown(
    shell: CommandLine, more: tuple[str, ...]
) -> None:
    done = shell.holdfast("policy", "check", address(f"{CANARY}@", shell.engine.url), *more)
    assert "[redacted]@" in done.out
    assert CANARY not in done.out + done.err


# --- the engine that a run starts for itself

needs_local = pytest.mark.skipif(
    not all(importlib.util.find_spec(item) for item in ("torch", "transformers")),
    reason="needs the extra `local`",
)
SECONDS = 120
WAITING = """
import asyncio
from pathlib import Path
import holdfast


async def solve(t: holdfast.Rollout) -> None:
    t.add(*t.task.messages)
    await t.generate(max_tokens=8)
    Path("begun").touch()
    while not Path("go").exists():
        await asyncio.sleep(0.02)
    t.add("go on")
    await t.generate(max_tokens=8)
"""


def until(true: Callable[[], object], *, while_running: "subprocess.Popen[str] | None") -> None:
    deadline = time.monotonic() + SECONDS
    while not true():
        if while_running is not None and while_running.poll() is not None:
            raise AssertionError(f"it ended: {end(while_running).err}")
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


def engines_of(pid: int) -> list[int]:
    """The children of a process that serve a model."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    children = [int(word) for file in tasks for word in file.read_text().split()]
    return [child for child in children if b"serve" in Path(f"/proc/{child}/cmdline").read_bytes()]


@contextmanager
def waiting_run(shell: CommandLine) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """A run with an engine of its own, in the middle of its work; and that engine."""
    shell.write("agent.py", WAITING)
    shell.tasks("sum")
    arguments = ["run", "agent.py", "--tasks", "tasks.jsonl", "--run", "r", "--seed", 7, "--json"]
    env = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    driver = start(*arguments, "--patience", 60, cwd=shell.place, env=env)
    mine: list[int] = []
    try:
        until((shell.place / "begun").exists, while_running=driver)
        mine = engines_of(driver.pid)
        (engine,) = mine
        yield driver, engine
    finally:
        if driver.poll() is None:
            mine += engines_of(driver.pid)
            driver.kill()
        driver.communicate()
        for item in mine:
            if is_alive(item):
                os.kill(item, signal.SIGKILL)


@needs_local
def test_a_runs_own_engine_that_is_killed_is_started_again_and_the_run_completes(
    shell: CommandLine,
) -> None:
    with waiting_run(shell) as (driver, engine):
        os.kill(engine, signal.SIGKILL)
        (shell.place / "go").touch()
        done = end(driver)
    assert done.code == Exit.OK, done.err
    data = json.loads(shell.holdfast("show", "r", "sum/0", "--json").out)
    assert data["status"] == "COMPLETED"
    assert (len(data["turns"]), data["failure_records"]) == (2, [])


@needs_local
def test_a_runs_own_engine_is_gone_soon_after_the_run_is_killed(shell: CommandLine) -> None:
    with waiting_run(shell) as (driver, engine):
        assert is_alive(engine)
        driver.kill()
        driver.wait()
        until(lambda: not is_alive(engine), while_running=None)
