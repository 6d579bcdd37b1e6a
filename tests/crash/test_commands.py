"""The crash suite through the command line: random kills, frozen workers, two at once."""

import os
import random
import signal
import time

import pytest

from holdfast.journal.damage.check import check
from holdfast.testing import FakeEngine, Fault, FaultKind
from support.crash.command import export_samples, finished, holdfast, let_go, run_words, write_tasks
from support.crash.freezing import freeze

KILLS = 20


@pytest.fixture
def engine():
    with FakeEngine(mean_length=16, delay=0.02) as engine:
        yield engine


def undisturbed(tmp_path, engine, tasks, *extra) -> bytes:
    place = tmp_path / "undisturbed"
    place.mkdir()
    env = {"HOLDFAST_EFFECTS": str(place / "effects")}
    code, _, err = finished(holdfast(*run_words(place, engine, tasks, *extra), env=env))
    assert code == 0, err
    return export_samples(place)


def test_twenty_random_kills_at_concurrency_64_change_nothing(tmp_path, engine):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    # Tools that may be repeated: what differs after a kill would be a bug, not a contract.
    tasks = write_tasks(tmp_path / "tasks.jsonl", [f"look{i}" for i in range(60)])
    extra = ("--samples", 4, "--concurrency", 64)
    engine.set_faults(
        Fault(FaultKind.RESET_AFTER, rate=0.05), Fault(FaultKind.UNAVAILABLE, rate=0.05)
    )
    expected = undisturbed(tmp_path, engine, tasks, *extra)
    requests = engine.stats().requests
    engine.reset()
    engine.set_faults(
        Fault(FaultKind.RESET_AFTER, rate=0.05), Fault(FaultKind.UNAVAILABLE, rate=0.05)
    )
    env = {"HOLDFAST_EFFECTS": str(tmp_path / "effects")}
    arguments = run_words(tmp_path, engine, tasks, *extra)
    kills = 0
    while kills < KILLS:
        process = holdfast(*arguments, env=env)
        _wait_for_progress(process, engine, chance)
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        finished(process)
        kills += 1
    code, _, err = finished(holdfast(*arguments, env=env))
    assert code == 0, err
    assert export_samples(tmp_path) == expected
    assert not check(tmp_path / "journal.db").findings
    assert engine.stats().requests <= requests + (kills + 1) * 64
    assert kills >= KILLS // 2, "the run ended before it was disturbed enough"


def _wait_for_progress(process, engine, chance) -> None:
    """Some requests further on, at a random moment."""
    goal = engine.stats().requests + chance.randrange(1, 60)
    while process.poll() is None and engine.stats().requests < goal:
        time.sleep(chance.random() * 0.02)


def test_a_worker_that_was_frozen_past_its_lease_can_write_nothing(tmp_path, engine):
    tasks = write_tasks(tmp_path / "tasks.jsonl", [f"read{i}" for i in range(12)])
    expected = undisturbed(tmp_path, engine, tasks, "--samples", 2)
    env = {"HOLDFAST_EFFECTS": str(tmp_path / "effects")}
    arguments = run_words(tmp_path, engine, tasks, "--samples", 2, "--lease", 1, "--concurrency", 4)
    engine.reset()
    engine.set_faults(Fault(FaultKind.HOLD, matching="/read5/"))  # So that it is not over before.
    frozen = holdfast(*arguments, env=env)
    while engine.stats().requests < 10:
        time.sleep(0.01)
    freeze(frozen, tmp_path / "journal.db")
    engine.set_faults()
    while engine.stats().in_flight:
        engine.release()
        time.sleep(0.01)
    try:
        time.sleep(1.5)
        code, _, err = finished(holdfast(*arguments, env=env))
        assert code == 0, err
        taken_over = export_samples(tmp_path)
        records = check(tmp_path / "journal.db").records
    finally:
        frozen.send_signal(signal.SIGCONT)
    code, _, err = finished(frozen)
    assert code == 5, err
    assert "another worker" in err
    assert taken_over == export_samples(tmp_path) == expected
    report = check(tmp_path / "journal.db")
    assert report.records == records, "the frozen worker wrote something"
    assert not report.findings


def test_a_second_driver_is_refused_and_the_first_goes_on(tmp_path, engine):
    tasks = write_tasks(tmp_path / "tasks.jsonl", [f"read{i}" for i in range(20)])
    env = {"HOLDFAST_EFFECTS": str(tmp_path / "effects")}
    arguments = run_words(tmp_path, engine, tasks, "--samples", 2, "--concurrency", 2)
    engine.set_faults(Fault(FaultKind.HOLD, matching="/read19/"))
    first = holdfast(*arguments, env=env)
    while engine.stats().requests < 4:
        time.sleep(0.01)
    code, _, err = finished(holdfast(*arguments, env=env))
    assert code == 4
    assert f"process {first.pid}" in err
    assert "--join" in err
    assert len(err.strip().splitlines()) == 1
    let_go(engine, first)
    assert finished(first)[0] == 0


def test_two_drivers_that_share_a_run_never_double_the_work(tmp_path, engine):
    tasks = write_tasks(tmp_path / "tasks.jsonl", [f"read{i}" for i in range(40)])
    expected = undisturbed(tmp_path, engine, tasks, "--samples", 2)
    requests = engine.stats().requests
    engine.reset()
    env = {"HOLDFAST_EFFECTS": str(tmp_path / "effects")}
    arguments = run_words(tmp_path, engine, tasks, "--samples", 2, "--concurrency", 2, "--join")
    both = [holdfast(*arguments, env=env), holdfast(*arguments, env=env)]
    for process in both:
        code, _, err = finished(process)
        assert code == 0, err
    assert export_samples(tmp_path) == expected
    assert engine.stats().requests == requests
    effects = (tmp_path / "effects").read_text().splitlines()
    assert len(effects) == len(set(effects))


def test_the_survivor_of_two_drivers_takes_over_what_the_killed_one_held(tmp_path, engine):
    tasks = write_tasks(tmp_path / "tasks.jsonl", [f"read{i}" for i in range(24)])
    expected = undisturbed(tmp_path, engine, tasks, "--samples", 2)
    engine.reset()
    env = {"HOLDFAST_EFFECTS": str(tmp_path / "effects")}
    arguments = run_words(tmp_path, engine, tasks, "--samples", 2, "--concurrency", 2, "--join")
    killed, survivor = holdfast(*arguments, env=env), holdfast(*arguments, env=env)
    while engine.stats().requests < 30:
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    finished(killed)
    code, out, err = finished(survivor)
    assert code == 0, err
    assert "not settled" not in out
    assert export_samples(tmp_path) == expected


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_cleanly_and_names_the_command_that_goes_on(tmp_path, engine, number):
    tasks = write_tasks(tmp_path / "tasks.jsonl", [f"read{i}" for i in range(40)])
    expected = undisturbed(tmp_path, engine, tasks)
    env = {"HOLDFAST_EFFECTS": str(tmp_path / "effects")}
    arguments = run_words(tmp_path, engine, tasks, "--concurrency", 4)
    engine.reset()
    engine.set_faults(Fault(FaultKind.HOLD, matching="/read39/"))
    process = holdfast(*arguments, env=env)
    while engine.stats().requests < 20:
        time.sleep(0.01)
    process.send_signal(number)
    _wait_until_it_finishes(process)
    let_go(engine, process)
    err = process.stderr.read()
    assert finished(process)[0] == 128 + number
    assert "to go on: holdfast run" in err
    assert "Traceback" not in err
    assert "never retrieved" not in err
    # The leases were given back: the next worker needs not wait for anything.
    code, _, err = finished(holdfast(*arguments, env=env))
    assert code == 0, err
    assert export_samples(tmp_path) == expected
    effects = (tmp_path / "effects").read_text().splitlines()
    assert len(effects) == len(set(effects)), "a clean stop repeats no tool"


def _wait_until_it_finishes(process) -> None:
    while "again to stop at once" not in (line := process.stderr.readline()):
        assert line, "it ended before"


def test_a_second_signal_stops_at_once(tmp_path):
    with FakeEngine(delay=600) as engine:
        tasks = write_tasks(tmp_path / "tasks.jsonl", ["read0", "read1"])
        env = {"HOLDFAST_EFFECTS": str(tmp_path / "effects")}
        process = holdfast(*run_words(tmp_path, engine, tasks, "--grace", 600), env=env)
        while engine.stats().requests < 2:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _wait_until_it_finishes(process)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(60) == 130
        _, message = process.communicate()
    assert "stopped at once\nto go on: holdfast run" in message
    assert not check(tmp_path / "journal.db").findings


def test_the_endpoint_dies_and_comes_back_and_no_trajectory_fails(tmp_path):
    with FakeEngine(mean_length=16, delay=0.02) as engine:
        tasks = write_tasks(tmp_path / "tasks.jsonl", [f"read{i}" for i in range(30)])
        expected = undisturbed(tmp_path, engine, tasks, "--samples", 2)
        env = {"HOLDFAST_EFFECTS": str(tmp_path / "effects")}
        engine.reset()
        process = holdfast(*run_words(tmp_path, engine, tasks, "--samples", 2), env=env)
        while engine.stats().requests < 60:
            time.sleep(0.01)
        engine.kill()
        time.sleep(2)
        engine.start()
        code, out, err = finished(process)
    assert code == 0, err
    assert "FAILED" not in out
    assert export_samples(tmp_path) == expected


def test_an_endpoint_that_stays_down_stops_the_run_and_loses_nothing(tmp_path):
    with FakeEngine(mean_length=16, delay=0.02) as engine:
        tasks = write_tasks(tmp_path / "tasks.jsonl", [f"read{i}" for i in range(30)])
        expected = undisturbed(tmp_path, engine, tasks)
        env = {"HOLDFAST_EFFECTS": str(tmp_path / "effects")}
        engine.reset()
        engine.set_faults(Fault(FaultKind.HOLD, matching="/read29/"))
        arguments = run_words(tmp_path, engine, tasks, "--patience", 1, "--concurrency", 8)
        process = holdfast(*arguments, env=env)
        while engine.stats().requests < 30:
            time.sleep(0.01)
        engine.kill()
        code, out, err = finished(process)
        assert code == 5
        assert "has been down" in err
        assert "to go on: holdfast run" in err
        assert "FAILED" not in out
        engine.start()
        engine.set_faults()
        code, _, err = finished(holdfast(*arguments, env=env))
        assert code == 0, err
    assert export_samples(tmp_path) == expected
