"""What a list of trajectories says of each, and what is said of those that nobody works on."""

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast.records.exit_codes import Exit
from holdfast.testing import FakeEngine, Fault, FaultKind
from support.cli.shell import CommandLine, end, start


@pytest.fixture(scope="module")
def ran(module_engine, tmp_path_factory):
    """A run with outcomes of all kinds, made once."""
    shell = CommandLine(tmp_path_factory.mktemp("listing"), module_engine)
    shell.tasks("sum", "long-one", "bug")
    shell.finished_run("--samples", 2)
    return shell


def listing(shell, *arguments) -> list[str]:
    """The lines of the list, which comes last."""
    done = shell.holdfast("show", "r", *arguments)
    assert (done.code, done.err) == (Exit.OK, "")
    return done.out.rpartition("\n\n")[2].splitlines()


def test_each_trajectory_is_listed_with_its_reward_and_why_it_ended_early(ran):
    lines = listing(ran)
    messages = [re.split(r" {2,}", line) for line in lines]
    assert [(name, status) for name, status, *_ in messages] == [
        *(("sum/0", "COMPLETED"), ("sum/1", "COMPLETED")),
        *(("long-one/0", "TRUNCATED"), ("long-one/1", "TRUNCATED")),
        *(("bug/0", "FAILED"), ("bug/1", "COMPLETED")),
    ]
    rows = json.loads(ran.holdfast("show", "r", "--json").out)["rows"]
    rewards = [row["reward"] for row in rows]
    assert [reward is None for reward in rewards] == [False] * 4 + [True, False]
    assert [cells[2] for cells in messages] == [
        "no reward" if reward is None else f"reward {reward:g}" for reward in rewards
    ]
    assert [cells[4:] for cells in messages] == [
        *([], [], ["max_turns"], ["max_turns"], ["KeyError: 'a bug in bug'"], [])
    ]
    assert [row["reason"] for row in rows[2:5]] == [
        *("max_turns", "max_turns", "KeyError: 'a bug in bug'")
    ]


def test_the_list_is_in_columns(ran):
    lines = listing(ran)
    assert len({re.search("COMPLETED|TRUNCATED|FAILED", line).start() for line in lines}) == 1
    assert len({re.search("reward|no reward", line).start() for line in lines}) == 1
    assert len({re.search(r"\d+ records", line).start() for line in lines}) == 1


def test_those_of_one_status_can_be_listed_alone(ran):
    (line,) = listing(ran, "--status", "FAILED")
    assert line.startswith("bug/0  FAILED")
    assert len(listing(ran, "--status", "truncated")) == 2
    data = json.loads(ran.holdfast("show", "r", "--status", "FAILED", "--json").out)
    assert [row["key"]["task"] for row in data["rows"]] == ["bug"]
    assert data["trajectories"] == 6, "the report is of the whole run"


def test_a_status_that_is_none_or_of_one_trajectory_is_refused(ran):
    done = ran.holdfast("show", "r", "--status", "DONE")
    assert done.code == Exit.USAGE
    assert "'COMPLETED'" in done.line
    done = ran.holdfast("show", "r", "sum/0", "--status", "FAILED")
    assert done.code == Exit.USAGE
    assert "--status is for the list" in done.line


@contextmanager
def in_the_middle(place) -> "Iterator[tuple[CommandLine, subprocess.Popen[str]]]":
    """A run that waits for the second reply of each of its two trajectories."""
    slow = Fault(FaultKind.SLOW, seconds=600, times=0, matching="/0/2")
    with FakeEngine(mean_length=10, faults=[slow]) as engine:
        shell = CommandLine(place, engine)
        process = start(*shell.arguments("--quiet", "--grace", 0), cwd=shell.place)
        try:
            while engine.stats().requests < 4:
                assert process.poll() is None
            yield shell, process
        finally:
            process.kill()
            process.communicate()


def test_what_a_killed_run_leaves_is_not_called_running(tmp_path):
    with in_the_middle(tmp_path) as (shell, process):
        assert "(2 RUNNING)" in shell.holdfast("runs").out
        assert all(f"process {process.pid} on " in line for line in listing(shell))
        process.kill()
        process.wait()
        done = shell.holdfast("runs")
        assert "0 of 2 settled (2 unfinished: nobody works on them)" in done.out
        lines = listing(shell)
        assert all(line.endswith("nobody works on it") for line in lines)
        assert not any("process" in line for line in lines)
        (row,) = json.loads(shell.holdfast("runs", "--json").out)
        assert row["by_status"] == {"RUNNING": 2}, "scripts read what is recorded"


def test_the_report_of_an_interrupted_run_does_not_say_that_it_is_running(tmp_path):
    with in_the_middle(tmp_path) as (_, process):
        process.send_signal(signal.SIGINT)
        done = end(process)
    assert done.code == Exit.INTERRUPTED
    assert "run r: 2 trajectories: 2 unfinished\n" in done.out
    assert "RUNNING" not in done.out


def test_progress_counts_those_that_failed_in_an_earlier_start(shell):
    shell.tasks("bug-1", "sum")
    first = shell.finished_run(samples=1)
    assert ", 1 failed, " in first.err.splitlines()[-1]
    again = shell.finished_run("--accept-changes", samples=2)
    assert again.err.splitlines()[-1].startswith("4/4 done in ")
    assert ", 1 failed, " in again.err.splitlines()[-1]
