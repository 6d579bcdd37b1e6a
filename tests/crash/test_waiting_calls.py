"""A kill disturbs the calls that have begun, and none that waits for a thread or a process."""

import asyncio
import signal
from pathlib import Path

import pytest

from holdfast.journal import open_journal
from holdfast.journal.damage.check import check
from holdfast.records.history import History
from holdfast.records.step import INTERRUPTED_CALL
from holdfast.rollout.threads.pool import MAX_ADMITTED
from holdfast.rollout.tools.isolated.pool import PROCESSES
from holdfast.testing import FakeEngine
from support.crash.command import finished, holdfast, run_words, write_tasks

TRAJECTORIES, CALLS = 2, 50
ALL = TRAJECTORIES * CALLS


def start(place: Path, engine: FakeEngine, tasks: Path, *, kill_at: int):
    arguments = run_words(place, engine, tasks, "--keep-interrupted", rollout="waiting_calls.py")
    env = {"HOLDFAST_EFFECTS": str(place), "KILL_AT": str(kill_at), "CALLS": str(CALLS)}
    return holdfast(*arguments, env=env)


def begun(place: Path) -> list[int]:
    return sorted(int(line) for line in (place / "begun").read_text().splitlines())


def interrupted(place: Path) -> int:
    """Calls of which the model was told that nobody knows whether they took effect."""

    async def count() -> int:
        journal = open_journal(place / "journal.db", read_only=True)
        try:
            run = await journal.find_run("crash")
            assert run is not None
            items = [History(log).results async for _, log in journal.histories(run)]
        finally:
            await journal.close()
        results = [result for by_path in items for result in by_path.values()]
        assert len(results) == ALL
        return sum(result.error == INTERRUPTED_CALL for result in results)

    return asyncio.run(count())


@pytest.mark.parametrize(
    ("kind", "kill_at", "about_to_begin"),
    [("isolated", PROCESSES, 0), ("in_process", 10, 2 * MAX_ADMITTED), ("in_process", ALL, 0)],
)
def test_only_calls_that_began_are_interrupted_by_a_kill(
    tmp_path: Path, kind: str, kill_at: int, about_to_begin: int
) -> None:
    """`about_to_begin`: the most calls that are durable and whose threads have not written their
    line yet. Half of them wait for their threads. On a busy machine, the other threads were stopped
    on the way to their line."""
    names = [f"{kind}-{number}" for number in range(TRAJECTORIES)]
    tasks = write_tasks(tmp_path / "tasks.jsonl", names)
    with FakeEngine(mean_length=16) as engine:
        code, _, err = finished(start(tmp_path, engine, tasks, kill_at=kill_at))
        assert code == -signal.SIGKILL, err
        at_kill = begun(tmp_path)
        assert len(at_kill) >= kill_at
        (tmp_path / "go").touch()
        code, _, err = finished(start(tmp_path, engine, tasks, kill_at=0))
    assert code == 0, err
    lost = interrupted(tmp_path)
    assert len(at_kill) <= lost <= len(at_kill) + about_to_begin
    # Nothing was paid twice, and what was interrupted before it began was not paid at all.
    assert len(begun(tmp_path)) == len(set(begun(tmp_path))) == ALL - (lost - len(at_kill))
    assert not check(tmp_path / "journal.db").findings
