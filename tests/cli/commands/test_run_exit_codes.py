"""How a run ended is known by its exit code."""

import os
import subprocess
import sys

import pytest

from holdfast.records.exit_codes import Exit


def test_a_run_in_which_nothing_succeeded_is_no_success(lab):
    lab.tasks("bug-one", "bug-two")
    done = lab.run("--quiet")
    assert done.code == Exit.NOTHING
    assert done.line == "holdfast: nothing succeeded: all 2 trajectories failed for good"
    again = lab.run("--quiet")
    assert again.code == Exit.NOTHING, "nor is it one when it is asked for again"
    assert lab.run("--quiet", "--fail-on-permanent-failure").code == Exit.FAILURES
    lab.tasks("bug-one", file="one.jsonl")
    alone = lab.run("--quiet", tasks="one.jsonl", run="alone")
    assert alone.line == "holdfast: nothing succeeded: the only trajectory failed for good"


def test_one_success_is_enough(lab):
    lab.tasks("bug-one", "long-one")
    assert lab.run("--quiet").code == Exit.OK


def test_a_finished_run_is_reported_without_an_engine(lab):
    first = lab.finished_run()
    lab.engine.reset()
    gone = lab.run(policy="http://127.0.0.1:1")
    assert gone.code == Exit.OK, gone.err
    assert gone.out == first.out
    assert gone.err == (
        "holdfast: run r was finished before: this is from its journal (--new runs it again)\n"
    )
    assert lab.run("--quiet", policy="http://127.0.0.1:1").err == ""
    again = lab.run("--retry-failed", policy="http://127.0.0.1:1")
    assert again.code == Exit.STOPPED, "here it is needed"
    other = lab.run(policy="http://127.0.0.1:1", model="another")
    assert other.code == Exit.STOPPED, "only an engine could say whether it serves that"
    assert lab.run(policy="http://127.0.0.1:1", seed=8).code == Exit.STOPPED
    assert lab.engine.stats().endpoints == {}


def test_no_embedded_engine_is_started_for_a_finished_run(lab):
    lab.write("agent.py", "async def solve(t):\n    pass\n")
    words = ["run", "agent.py", "--tasks", "tasks.jsonl", "--run", "e"]
    assert lab.holdfast(*words).code == Exit.OK
    again = lab.holdfast(*words)
    assert again.code == Exit.OK
    assert "2 COMPLETED" in again.out
    assert "starting the embedded engine" not in again.err
    assert "this is from its journal" in again.err


@pytest.mark.parametrize("both", [False, True])
def test_a_reader_that_went_away_does_not_change_it(lab, both):
    """As in `holdfast run … 2>&1 | head -1`: with `pipefail`, a failed run is no success."""
    lab.tasks("bug-one", "bug-two")
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "holdfast", *map(str, lab.words())]
    try:
        done = subprocess.run(
            words, cwd=lab.place, stdout=writer, stderr=writer if both else subprocess.PIPE
        )
    finally:
        os.close(writer)
    assert done.returncode == Exit.NOTHING
