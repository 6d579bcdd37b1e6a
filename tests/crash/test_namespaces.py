"""Drivers in PID namespaces of their own, as containers are, with one host name and one journal:
neither can see the other's process, and neither takes it for dead while it lives."""

import contextlib
import signal
import sqlite3
import time

import pytest

from holdfast.journal.damage.check import check
from holdfast.testing import FakeEngine, Fault, FaultKind
from support.crash.command import export_samples, finished, holdfast, let_go, run_words, write_tasks
from support.namespaces import IN_A_PID_NAMESPACE, needs_namespaces

pytestmark = needs_namespaces
TASKS = 8
SAMPLES = 2


@pytest.fixture
def engine():
    with FakeEngine(mean_length=16, delay=0.02) as engine:
        yield engine


def undisturbed(tmp_path, engine, tasks) -> tuple[bytes, int]:
    place = tmp_path / "undisturbed"
    place.mkdir()
    env = {"HOLDFAST_EFFECTS": str(place / "effects")}
    arguments = run_words(place, engine, tasks, "--samples", SAMPLES)
    code, _, err = finished(holdfast(*arguments, env=env))
    assert code == 0, err
    requests = engine.stats().requests
    engine.reset()
    return export_samples(place), requests


def container(arguments, env):
    return holdfast(*arguments, env=env, around=IN_A_PID_NAMESPACE)


def until(condition, *processes) -> None:
    """Waits for it, or fails when one of the processes ends before."""
    while not condition():
        for process in processes:
            assert process.poll() is None, finished(process)
        time.sleep(0.02)


def _heartbeats(tmp_path) -> list[tuple[float]]:
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as connection:
        return connection.execute("SELECT lease_until FROM workers").fetchall()


def test_two_live_drivers_never_take_each_others_work(tmp_path, engine):
    tasks = write_tasks(tmp_path / "tasks.jsonl", [f"pay{i}" for i in range(TASKS)])
    expected, requests = undisturbed(tmp_path, engine, tasks)
    env = {"HOLDFAST_EFFECTS": str(tmp_path / "effects")}
    arguments = run_words(
        tmp_path, engine, tasks, "--samples", SAMPLES, "--concurrency", 2, "--join"
    )
    held = [Fault(FaultKind.HOLD, matching=f"/pay0/{sample}") for sample in range(SAMPLES)]
    engine.set_faults(*held)
    first = container(arguments, env)
    until(lambda: engine.stats().in_flight == SAMPLES, first)
    second = container(arguments, env)
    # The second has nothing left to do but to stand by, and to look at whether the first lives.
    per_task = requests // TASKS
    until(lambda: engine.stats().requests >= SAMPLES + (TASKS - 1) * per_task, first, second)
    seen = _heartbeats(tmp_path)
    for _ in range(2):  # Each look of one that stands by is a heartbeat of it, too.
        until(lambda before=seen: _heartbeats(tmp_path) != before, first, second)
        seen = _heartbeats(tmp_path)
    let_go(engine, first)
    for process in (first, second):
        code, _, err = finished(process)
        assert code == 0, err
    assert export_samples(tmp_path) == expected
    assert engine.stats().requests == requests
    effects = (tmp_path / "effects").read_text().splitlines()
    assert len(effects) == len(set(effects)) == TASKS * SAMPLES * 3
    assert not check(tmp_path / "journal.db").findings


def test_a_live_driver_in_another_namespace_holds_its_run(tmp_path, engine):
    tasks = write_tasks(tmp_path / "tasks.jsonl", ["pay0"])
    env = {"HOLDFAST_EFFECTS": str(tmp_path / "effects")}
    arguments = run_words(tmp_path, engine, tasks)
    engine.set_faults(Fault(FaultKind.HOLD, matching="/pay0/"))
    first = container(arguments, env)
    until(lambda: engine.stats().in_flight == 1, first)
    for second in (holdfast(*arguments, env=env), container(arguments, env)):
        code, _, err = finished(second)
        assert code == 4
        assert "process 1 on" in err
    let_go(engine, first)
    code, _, err = finished(first)
    assert code == 0, err


def test_a_killed_driver_of_another_namespace_is_taken_over_when_its_lease_runs_out(
    tmp_path, engine
):
    tasks = write_tasks(tmp_path / "tasks.jsonl", [f"read{i}" for i in range(TASKS)])
    expected, _ = undisturbed(tmp_path, engine, tasks)
    env = {"HOLDFAST_EFFECTS": str(tmp_path / "effects")}
    arguments = run_words(tmp_path, engine, tasks, "--samples", SAMPLES, "--join", "--lease", 3)
    engine.set_faults(Fault(FaultKind.HOLD, matching="/read0/"))
    killed = container(arguments, env)
    until(lambda: engine.stats().in_flight >= 1, killed)
    survivor = container(arguments, env)
    killed.send_signal(signal.SIGKILL)  # `unshare --kill-child` takes its own along.
    finished(killed)
    engine.set_faults()
    engine.release()
    code, _, err = finished(survivor)
    assert code == 0, err
    assert export_samples(tmp_path) == expected
    assert not check(tmp_path / "journal.db").findings
