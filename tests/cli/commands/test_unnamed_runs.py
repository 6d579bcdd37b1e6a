"""Runs without a name: numbered, continued where nothing changed, and the next where it did."""

import os
import signal
import time
from pathlib import Path

import pytest

from holdfast.records.exit_codes import Exit
from holdfast.testing import FakeEngine, Fault, FaultKind
from support.cli.shell import AGENT, Done, Lab, end, start


class Unnamed(Lab):
    def words(self, *extra: object, **options: object) -> list[object]:
        words = super().words(**options)
        at = words.index("--run")
        return [*words[:at], *words[at + 2 :], *extra]

    def names(self) -> list[str]:
        return self.holdfast("runs", "--names").out.split()

    def next(self, *extra: object, **options: object) -> Done:
        done = self.run(*extra, **options)
        assert done.code == 0, done.err
        return done


@pytest.fixture
def lab(tmp_path: Path):
    with FakeEngine(mean_length=10) as engine:
        yield Unnamed(tmp_path, engine)


def test_the_same_command_goes_on_and_a_change_begins_the_next_run(lab):
    lab.next()
    asked = lab.engine.stats().requests
    assert "run agent-1 was finished before" in lab.next().err
    lab.write("agent.py", AGENT.replace("/ 100", "/ 50"))
    done = lab.next()
    said = "agent.py changed (score): this is agent-2; compare agent-1 agent-2 shows the difference"
    assert f"holdfast: {said}" in done.err.splitlines()
    assert len(f"holdfast: {said}") <= 100
    assert "2 reused from agent-1" in done.out
    assert lab.engine.stats().requests == asked
    lab.write("agent.py", AGENT.replace("so: ", "thus: "))
    assert "agent.py changed (solve, score): this is agent-3" in lab.next().err
    assert lab.engine.stats().requests == 2 * asked
    lab.write("agent.py", AGENT)
    assert "run agent-1 was finished before" in lab.next().err
    assert lab.names() == ["agent-1", "agent-2", "agent-3"]


def test_changed_settings_and_tasks_are_named(lab):
    lab.next()
    assert "samples changed (1 → 2): this is agent-2" in lab.next("--samples", 2).err
    assert "temperature changed (1.0 → 0.5)" in lab.next("--samples", 2, "--temperature", 0.5).err
    lab.tasks("sum", "other")
    changed = "tasks changed (1 added (other), 1 removed (long-one))"
    assert changed in lab.next("--samples", 2, "--temperature", 0.5).err
    lab.tasks("sum", file="sums.jsonl")
    assert lab.names()[-1] == "agent-4"
    lab.next(tasks="sums.jsonl")
    assert lab.names()[-1] == "agent-sums-1"


def test_a_killed_run_goes_on_under_its_name(lab):
    lab.engine.set_faults(Fault(FaultKind.HOLD, matching="long-one"))
    process = start(*lab.words("--concurrency", 1), cwd=lab.place)
    while lab.engine.stats().in_flight == 0 or lab.engine.stats().requests < 3:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    end(process)
    lab.engine.set_faults()
    lab.engine.release()
    lab.next()
    assert lab.names() == ["agent-1"]


def test_fresh_samples_everything_anew_and_accept_changes_keeps_the_newest(lab):
    lab.next()
    asked = lab.engine.stats().requests
    assert "everything is sampled anew" in lab.next("--fresh").err
    assert lab.engine.stats().requests == 2 * asked
    lab.next("--samples", 2, "--accept-changes")
    assert lab.names() == ["agent-1", "agent-2"]
    assert "2 samples" in lab.holdfast("runs").out


def test_a_name_that_is_given_is_as_strict_as_ever(lab):
    lab.next("--run", "agent-1")
    assert lab.run("--run", "agent-1", "--samples", 2).code == Exit.CHANGED
    lab.next()
    assert lab.names() == ["agent-1", "agent-2"], "what the user named is no run of the series"


def test_a_run_is_resumed_by_the_name_that_it_got(lab):
    lab.next()
    lab.write("agent.py", AGENT.replace("so: ", "thus: "))
    assert lab.holdfast("resume", "agent-1").code == Exit.CHANGED
    printed = lab.holdfast("resume", "agent-1", "--print").out
    assert "--run agent-1" in printed


def test_a_dry_run_shows_what_would_be_done_and_does_nothing(lab):
    done = lab.next("--dry-run", "--samples", 2)
    for line in ("run agent-1: 2 tasks × 2 samples", "  sampled: 4", "  scored by: score"):
        assert line in done.out.splitlines()
    assert "first prompt, of sum:" in done.out
    assert "d│o│ │s│u│m" in done.out
    assert not lab.journal.exists()
    lab.next()
    asked = lab.engine.stats().requests
    done = lab.next("--dry-run", "--samples", 2)
    assert "  sampled: 2\n  reused from agent-1: 2\n" in done.out
    assert "  goes on: 2 settled, 0 begun, 0 sampled" in lab.next("--dry-run").out
    lab.write("agent.py", "async def solve(t):\n    raise KeyError('no reply')\n")
    assert "the rollout asked for no reply" in lab.next("--dry-run").out
    assert lab.engine.stats().requests == asked
    assert lab.names() == ["agent-1"]


def test_prune_offers_what_has_no_name_and_was_left_unfinished(lab):
    assert lab.holdfast("prune", "--yes").code == Exit.USAGE, "there is no journal"
    lab.engine.set_faults(Fault(FaultKind.HOLD))
    for samples in (1, 2, 3):
        stopped = lab.run("--samples", samples, "--run-deadline", 1, "--grace", 0)
        assert stopped.code == Exit.STOPPED, stopped.err
    lab.engine.set_faults()
    lab.engine.release()
    lab.finished_run("--run", "named")
    assert lab.names() == ["agent-1", "agent-2", "agent-3", "named"]
    assert lab.holdfast("tag", "agent-1", "keep").code == 0
    done = lab.holdfast("prune", "--yes")
    assert done.out.startswith("deleted agent-2:")
    assert lab.names() == ["agent-1", "agent-3", "named"]
    assert "no unnamed run was left unfinished" in lab.holdfast("prune", "--yes").err
