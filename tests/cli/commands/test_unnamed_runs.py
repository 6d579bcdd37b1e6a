"""Runs without a name: numbered, continued where nothing changed, and the next where it did."""

import json
import os
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.records.exit_codes import Exit
from holdfast.testing import FakeEngine, Fault, FaultKind
from support.cli.shell import AGENT, CommandLine, Done, end, start

REWARD = """
def size(completions, **columns):
    return [1.0]
"""


class Unnamed(CommandLine):
    def arguments(self, *extra: object, **options: object) -> list[object]:
        arguments = super().arguments(**options)
        at = arguments.index("--run")
        return [*arguments[:at], *arguments[at + 2 :], *extra]

    def names(self) -> list[str]:
        return self.holdfast("runs", "--names").out.split()

    def next(self, *extra: object, **options: object) -> Done:
        done = self.run(*extra, **options)
        assert done.code == 0, done.err
        return done


@pytest.fixture
def shell(tmp_path: Path):
    with FakeEngine(mean_length=10) as engine:
        yield Unnamed(tmp_path, engine)


def test_the_same_command_goes_on_and_a_change_begins_the_next_run(shell):
    shell.next()
    requests = shell.engine.stats().requests
    assert "run agent-1 was finished before" in shell.next().err
    shell.write("agent.py", AGENT.replace("/ 100", "/ 50"))
    done = shell.next()
    text = "agent.py changed (score): this is agent-2; compare agent-1 agent-2 shows the difference"
    assert f"holdfast: {text}" in done.err.splitlines()
    assert len(f"holdfast: {text}") <= 100
    assert "2 reused from agent-1" in done.out
    assert shell.engine.stats().requests == requests
    shell.write("agent.py", AGENT.replace("so: ", "thus: "))
    assert "agent.py changed (solve, score): this is agent-3" in shell.next().err
    assert shell.engine.stats().requests == 2 * requests
    shell.write("agent.py", AGENT)
    assert "run agent-1 was finished before" in shell.next().err
    assert shell.names() == ["agent-1", "agent-2", "agent-3"]


def test_another_scorer_is_named_and_the_file_is_not_blamed(shell):
    shell.write("agent.py", AGENT + "\n\ndef strict(trajectory):\n    return 0.0\n")
    shell.next("--scorer", "score")
    assert (
        "scorer changed (score → strict): this is agent-2" in shell.next("--scorer", "strict").err
    )


def test_changed_settings_and_tasks_are_named(shell):
    shell.next()
    assert "samples changed (1 → 2): this is agent-2" in shell.next("--samples", 2).err
    assert "temperature changed (1.0 → 0.5)" in shell.next("--samples", 2, "--temperature", 0.5).err
    shell.tasks("sum", "other")
    changed = "tasks changed (1 added (other), 1 removed (long-one))"
    assert changed in shell.next("--samples", 2, "--temperature", 0.5).err
    shell.tasks("sum", file="sums.jsonl")
    assert shell.names()[-1] == "agent-4"
    shell.next(tasks="sums.jsonl")
    assert shell.names()[-1] == "agent-sums-1"


def test_a_killed_run_goes_on_under_its_name(shell):
    shell.engine.set_faults(Fault(FaultKind.HOLD, matching="long-one"))
    process = start(*shell.arguments("--concurrency", 1), cwd=shell.place)
    while shell.engine.stats().in_flight == 0 or shell.engine.stats().requests < 3:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    end(process)
    shell.engine.set_faults()
    shell.engine.release()
    assert "holdfast: agent-1 goes on: 1 of 2 trajectories finished before\n" in shell.next().err
    assert shell.names() == ["agent-1"]


@pytest.mark.parametrize("option", ["--new", "--fresh"])
def test_new_samples_everything_anew_and_accept_changes_keeps_the_newest(shell, option):
    shell.next()
    requests = shell.engine.stats().requests
    assert "everything is sampled anew" in shell.next(option).err
    assert shell.holdfast("resume", "agent-2", "--journal", shell.journal).code == 0
    assert shell.names() == ["agent-1", "agent-2"]
    assert shell.engine.stats().requests == 2 * requests
    shell.write("agent.py", AGENT.replace("/ 100", "/ 50"))
    done = shell.next("--samples", 2, "--accept-changes")
    assert done.err.splitlines()[:2] == [
        "holdfast: agent-2: accepted: agent.py changed (score); samples changed (1 → 2)",
        "holdfast: agent-2 goes on: 2 of 2 trajectories finished before",
    ]
    assert shell.names() == ["agent-1", "agent-2"]
    assert "2 samples" in shell.holdfast("runs").out


def test_a_name_that_is_given_is_as_strict_as_ever(shell):
    shell.next("--run", "agent-1")
    assert shell.run("--run", "agent-1", "--samples", 2).code == Exit.CHANGED
    shell.next()
    assert shell.names() == ["agent-1", "agent-2"], "what the user named is not a run of the series"


def test_a_run_is_resumed_by_the_name_that_it_got(shell):
    shell.next()
    shell.write("agent.py", AGENT.replace("so: ", "thus: "))
    assert shell.holdfast("resume", "agent-1").code == Exit.CHANGED
    printed = shell.holdfast("resume", "agent-1", "--print").out
    assert "--run agent-1" in printed


def test_a_dry_run_shows_what_would_be_done_and_does_nothing(shell):
    done = shell.next("--dry-run", "--samples", 2)
    for line in ("run agent-1: 2 tasks × 2 samples", "  sampled: 4", "  scored by: score"):
        assert line in done.out.splitlines()
    assert "first prompt, of sum:" in done.out
    assert "d│o│ │s│u│m" in done.out
    assert not shell.journal.exists()
    shell.next()
    requests = shell.engine.stats().requests
    done = shell.next("--dry-run", "--samples", 2)
    assert "  sampled: 2\n  reused from agent-1: 2\n" in done.out
    assert "  goes on: 2 settled, 0 begun, 0 sampled" in shell.next("--dry-run").out
    shell.write("agent.py", "async def solve(t):\n    raise KeyError('no reply')\n")
    assert "the rollout asked for no reply" in shell.next("--dry-run").out
    assert shell.engine.stats().requests == requests
    assert shell.names() == ["agent-1"]


def test_a_dry_run_says_in_words_what_changed(shell):
    shell.next()
    shell.write("agent.py", AGENT.replace("/ 100", "/ 50"))
    changed = "agent.py changed (score); samples changed (1 → 2)"
    dry = ("--samples", 2, "--dry-run", "--run", "agent-1")
    assert f"  is refused without --accept-changes: {changed}\n" in shell.next(*dry).out
    assert f"  goes on: {changed}\n" in shell.next(*dry, "--accept-changes").out
    assert shell.names() == ["agent-1"]


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_a_task_that_cannot_be_scored_is_named_by_its_line_before_an_engine_is_asked(shell, dry):
    rows = [{"id": name, "prompt": "?", "ground_truth": name} for name in ("B", "E")]
    shell.write("tasks.jsonl", "\n\n".join(json.dumps(row) for row in rows))
    shell.write("agent.py", AGENT + "\n\nright = holdfast.scorers.MultipleChoice()\n")
    for scorer, reason in (
        ("right", "tasks.jsonl:3 (E): MultipleChoice wants a ground_truth that is one of A, B"),
        ("rigth", "agent.py has no scorer 'rigth'; is 'right' meant?"),
    ):
        done = shell.run("--scorer", scorer, "--policy", "http://127.0.0.1:9", *dry)
        assert done.code == Exit.USAGE
        assert reason in done.line


def test_a_change_is_named_by_what_the_user_wrote(shell):
    text = AGENT + "\n\nright = holdfast.scorers.Contains()\n"
    shell.write("tasks.jsonl", json.dumps({"prompt": "?", "ground_truth": "a"}))
    shell.write("agent.py", text)
    shell.next("--scorer", "right")
    shell.write("agent.py", text.replace("Contains()", "Contains(ignore_case=True)"))
    assert "agent.py changed (Contains): this is agent-2" in shell.next("--scorer", "right").err
    changed = text.replace('"{word} means', '"{word} is')
    shell.write("agent.py", changed)
    assert "agent.py changed (look_up): this is agent-3" in shell.next("--scorer", "score").err
    shell.write("rewards.py", REWARD)
    shell.next("--scorer", "trl:rewards.py:size")
    shell.write("rewards.py", REWARD.replace("1.0", "2.0"))
    shell.write("agent.py", changed.replace('"{word} is', '"{word} was'))
    assert (
        "agent.py changed (look_up); rewards.py changed (size): this is agent-5"
        in shell.next("--scorer", "trl:rewards.py:size").err
    )


def test_a_run_that_gives_no_reward_says_so(shell):
    line = "holdfast: no reward is given: the file has no `score`, and --scorer names none\n"
    assert line not in shell.next().err
    shell.write("agent.py", AGENT.partition("def score")[0])
    assert line in shell.next().err
    assert shell.next("--new", "--quiet").err == ""


def test_reading_leaves_no_log_behind_and_takes_none_away(shell):
    shell.next()
    kept = sorted(path.name for path in shell.place.iterdir())
    for command in (("runs",), ("show", "agent-1"), ("journal", "check")):
        assert shell.holdfast(*command).code == 0
        assert sorted(path.name for path in shell.place.iterdir()) == kept
    with closing(sqlite3.connect(shell.journal)) as writer:
        writer.execute("CREATE TABLE other(x)")
        assert shell.holdfast("runs").code == 0
        assert (shell.place / "holdfast.db-wal").stat().st_size > 0
    shell.journal.chmod(0o444)
    assert shell.holdfast("runs").code == 0


def test_prune_offers_what_has_no_name_and_was_left_unfinished(shell):
    assert shell.holdfast("prune", "--yes").code == Exit.USAGE, "there is no journal"
    shell.engine.set_faults(Fault(FaultKind.HOLD))
    for samples in (1, 2, 3):
        stopped = shell.run("--samples", samples, "--run-deadline", 1, "--grace", 0)
        assert stopped.code == Exit.STOPPED, stopped.err
    shell.engine.set_faults()
    shell.engine.release()
    shell.finished_run("--run", "named")
    assert shell.names() == ["agent-1", "agent-2", "agent-3", "named"]
    assert shell.holdfast("tag", "agent-1", "keep").code == 0
    done = shell.holdfast("prune", "--yes")
    assert done.out.startswith("deleted agent-2:")
    assert shell.names() == ["agent-1", "agent-3", "named"]
    assert "no unnamed run was left unfinished" in shell.holdfast("prune", "--yes").err


def test_a_finished_run_is_no_result_of_another_model(shell):
    """Neither unnamed nor named, and `--accept-changes` does not mix the models."""
    shell.next()
    named = ("--run", "agent-1")
    hosted = ["--policy", "openai/gpt-4o-mini"]
    with FakeEngine(model="other") as other:
        for policy, why in (
            (hosted, "OPENAI_API_KEY"),
            (["--policy", other.url], "model: recorded"),
        ):
            command = ["run", "agent.py", "--tasks", "tasks.jsonl", "--seed", 7, *policy, *named]
            for option in ((), ("--accept-changes",)):
                done = shell.holdfast(*command, *option, env={"OPENAI_API_KEY": ""})
                assert (done.code != 0, "run agent-1" in done.out) == (True, False)
                assert why in done.err
        assert "2 trajectories came from model" in done.err
        assert other.stats().requests == 0
        unnamed = shell.holdfast(*command[:-2])
        assert "this is agent-2" in unnamed.err
        assert other.stats().requests > 0
    gone = shell.holdfast(*command[:6], "--policy", "http://127.0.0.1:9", *named)
    assert "run agent-1 was finished before" in gone.err
    assert "whether the policy serves it is not known" in gone.err
