"""How a run ended is known by its exit code."""

import os
import subprocess
import sys

import pytest

from holdfast.records.exit_codes import Exit


def test_a_run_in_which_nothing_succeeded_is_no_success(shell):
    shell.tasks("bug-one", "bug-two")
    done = shell.run("--quiet")
    assert done.code == Exit.NOTHING
    assert done.line == "holdfast: nothing succeeded: all 2 trajectories failed for good"
    again = shell.run("--quiet")
    assert again.code == Exit.NOTHING, "nor is it one when it is asked for again"
    assert shell.run("--quiet", "--fail-on-permanent-failure").code == Exit.FAILURES
    shell.tasks("bug-one", file="one.jsonl")
    alone = shell.run("--quiet", tasks="one.jsonl", run="alone")
    assert alone.line == "holdfast: nothing succeeded: the only trajectory failed for good"


def test_one_success_is_enough(shell):
    shell.tasks("bug-one", "long-one")
    assert shell.run("--quiet").code == Exit.OK


def test_a_finished_run_is_reported_without_an_engine(shell):
    first = shell.finished_run()
    shell.engine.reset()
    gone = shell.run(policy="http://127.0.0.1:1")
    assert gone.code == Exit.OK, gone.err
    assert gone.out == first.out
    assert gone.err == (
        "holdfast: run r was finished before: this is from its journal (--new runs it again)\n"
    )
    assert shell.run("--quiet", policy="http://127.0.0.1:1").err == ""
    again = shell.run("--retry-failed", policy="http://127.0.0.1:1")
    assert again.code == Exit.STOPPED, "here it is needed"
    other = shell.run(policy="http://127.0.0.1:1", model="another")
    assert other.code == Exit.STOPPED, "only an engine could say whether it serves that"
    assert shell.run(policy="http://127.0.0.1:1", seed=8).code == Exit.STOPPED
    assert shell.engine.stats().endpoints == {}


def test_no_embedded_engine_is_started_for_a_finished_run(shell):
    shell.write("agent.py", "async def solve(t):\n    pass\n")
    arguments = ["run", "agent.py", "--tasks", "tasks.jsonl", "--run", "e"]
    assert shell.holdfast(*arguments).code == Exit.OK
    again = shell.holdfast(*arguments)
    assert again.code == Exit.OK
    assert "2 COMPLETED" in again.out
    assert "starting the embedded engine" not in again.err
    assert "this is from its journal" in again.err


@pytest.mark.parametrize("both", [False, True])
def test_a_reader_that_went_away_does_not_change_it(shell, both):
    """As in `holdfast run … 2>&1 | head -1`: with `pipefail`, a failed run is no success."""
    shell.tasks("bug-one", "bug-two")
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "holdfast", *map(str, shell.arguments())]
    try:
        done = subprocess.run(
            command, cwd=shell.place, stdout=writer, stderr=writer if both else subprocess.PIPE
        )
    finally:
        os.close(writer)
    assert done.returncode == Exit.NOTHING
