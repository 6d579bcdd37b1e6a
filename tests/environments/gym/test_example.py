"""The FrozenLake example: short, right, and unharmed by a kill."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import holdfast
from holdfast.cli.setup.user_code import load_module
from holdfast.embedded.child_process import EmbeddedEngine
from holdfast.journal.sqlite.journal import MemoryJournal
from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.records.history import History
from support.environments.gym_games import walker
from support.paths import TESTS
from support.rollout.stage import Oracle

EXAMPLE = TESTS.parent / "examples" / "frozen_lake.py"
TASKS = [json.loads(line) for line in EXAMPLE.with_suffix(".jsonl").read_text().splitlines()]


def crossed(policy: Oracle) -> dict[str, History]:
    async def scenario() -> dict[str, History]:
        journal = MemoryJournal()
        await holdfast.run(
            load_module(EXAMPLE).cross,
            tasks=TASKS,
            policy=policy,
            journal=journal,
            name="lake",
            renderer=ByteRenderer(),
            seed=1,
        )
        run = await journal.find_run("lake")
        return {row.key.task: History(log) async for row, log in journal.histories(run)}

    return asyncio.run(scenario())


def test_it_is_short():
    assert len(EXAMPLE.read_text().splitlines()) <= 60


def test_who_knows_the_way_gets_the_reward():
    histories = crossed(walker())
    assert histories["still-4x4"].finished.reward == 1.0
    assert histories["still-4x4"].status.name == "COMPLETED"
    assert {history.failures == [] for history in histories.values()} == {True}


def test_who_does_nothing_ends_at_the_limit():
    histories = crossed(Oracle(lambda request: "left"))
    narrow = histories["narrow"]
    assert (narrow.status.name, narrow.finished.reward) == ("TRUNCATED", 0.0)
    assert len(narrow.generations) == 20


def test_every_lake_has_a_start_and_a_goal():
    for task in TASKS:
        rows = task["metadata"]["map"]
        assert (rows[0][0], rows[-1][-1]) == ("S", "G")
        assert {len(row) for row in rows} == {len(rows)}


def command(engine: EmbeddedEngine, place: Path) -> list[str]:
    return [
        sys.executable, "-m", "holdfast", "run", str(EXAMPLE),
        "--tasks", str(place / "tasks.jsonl"), "--journal", str(place / "killed.db"),
        "--run", "lake", "--seed", "1", "--quiet", "--policy", engine.url,
    ]  # fmt: skip


async def history_in(place: Path) -> History:
    journal = holdfast.open_journal(place, read_only=True)
    try:
        run = await journal.find_run("lake")
        (history,) = [History(log) async for _, log in journal.histories(run)] if run else [None]
        return history or History([])
    finally:
        await journal.close()


def wait_for_steps(place: Path, driver: "subprocess.Popen[bytes]", count: int) -> None:
    """Or for its end, should that be seen first."""
    while driver.poll() is None:
        with contextlib.suppress(holdfast.HoldfastError):  # Nothing is recorded yet.
            if len(asyncio.run(history_in(place)).environment_steps) >= count:
                return
        time.sleep(0.02)


def killed_in_the_middle(engine: EmbeddedEngine, place: Path) -> bool:
    driver = subprocess.Popen(command(engine, place))
    try:
        wait_for_steps(place / "killed.db", driver, 3)
    finally:
        driver.kill()
        assert driver.wait() in (0, -signal.SIGKILL)
    if asyncio.run(history_in(place / "killed.db")).finished is None:
        return True
    for file in place.glob("killed.db*"):
        file.unlink()
    return False


async def undisturbed(engine: EmbeddedEngine) -> History:
    policy, journal = holdfast.EnginePolicy(engine.url, engine.model), MemoryJournal()
    try:
        await holdfast.run(
            load_module(EXAMPLE).cross,
            tasks=TASKS[-1:],
            policy=policy,
            journal=journal,
            name="lake",
            seed=1,
        )
    finally:
        await policy.aclose()
    run = await journal.find_run("lake")
    (history,) = [History(log) async for _, log in journal.histories(run)]
    return history


def turns_of(history: History) -> list[tuple[object, ...]]:
    replies = [bytes(step.ids) for step in history.generations]
    seen = [(step.action, step.observation) for step in history.environment_steps]
    return list(zip(replies, seen, strict=True))


def test_with_the_embedded_engine_a_kill_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "tasks.jsonl").write_text(json.dumps(TASKS[-1]) + "\n")
    with EmbeddedEngine() as engine:
        # One that was over before it was looked at proves nothing.
        assert any(killed_in_the_middle(engine, tmp_path) for _ in range(10))
        subprocess.run(command(engine, tmp_path), check=True)
        expected = asyncio.run(undisturbed(engine))
    history = asyncio.run(history_in(tmp_path / "killed.db"))
    assert len(history.attempts) == 2
    assert history.status is expected.status
    assert turns_of(history) == turns_of(expected)
    assert not history.forks
