"""`holdfast rm` and `holdfast prune`: asked first, safe against live runs, space given back."""

import json
import os
import pty
import signal
import subprocess
import sys
import time

import pytest

import holdfast
from holdfast.cli.commands.runs.list_runs import resume_text
from holdfast.journal.damage.check import check
from holdfast.records.exit_codes import Exit
from support.cli.shell import CommandLine, end, start


def names(shell: CommandLine) -> list[str]:
    return shell.holdfast("runs", "--names").out.split()


def answer(shell: CommandLine, text: str, *arguments: str) -> tuple[int, str]:
    """The command at a terminal on which `text` is typed."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", *arguments],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=shell.place,
    )
    os.close(theirs)
    os.write(ours, text.encode())
    out, _ = process.communicate(timeout=120)
    os.close(ours)
    return process.returncode, out


@pytest.fixture
def two(shell: CommandLine) -> CommandLine:
    for name in ("one", "two"):
        shell.finished_run(run=name)
    return shell


def test_a_run_is_deleted_and_the_other_stays(two: CommandLine) -> None:
    before = two.export(run="two")
    done = two.holdfast("rm", "one", "--yes")
    assert done.code == 0, done.err
    assert "deleted one: 2 trajectories" in done.out
    assert "smaller" in done.out
    assert names(two) == ["two"]
    assert two.export(run="two") == before
    assert check(two.journal).findings == []
    two.finished_run(run="one")
    assert names(two) == ["two", "one"]


def test_several_are_deleted_at_once_and_a_wrong_name_deletes_none(two: CommandLine) -> None:
    refused = two.holdfast("rm", "one", "wrong", "--yes")
    assert refused.code == Exit.USAGE
    assert "'wrong'" in refused.line
    assert names(two) == ["one", "two"]
    assert two.holdfast("rm", "one", "two", "--yes").code == 0
    assert names(two) == []


def test_without_a_terminal_nothing_is_deleted_unasked(two: CommandLine) -> None:
    for arguments in (("rm", "one"), ("prune", "--keep", 1)):
        refused = end(start(*arguments, cwd=two.place, forked=False))
        assert refused.code == Exit.USAGE
        assert "--yes" in refused.line
        assert "one" in refused.line
    assert names(two) == ["one", "two"]


def test_a_terminal_is_asked(two: CommandLine) -> None:
    code, out = answer(two, "\n", "rm", "one")
    assert (code, names(two)) == (Exit.USAGE, ["one", "two"])
    assert "Delete this run for good? [y/N]" in out
    assert "nothing was deleted" in out
    code, _ = answer(two, "y\n", "rm", "one")
    assert (code, names(two)) == (0, ["two"])


def test_a_live_run_is_not_deleted(shell: CommandLine) -> None:
    shell.finished_run(run="done")
    shell.tasks(*(f"long-{number}" for number in range(200)))
    process = start(*shell.arguments("--concurrency", 1, run="live"), cwd=shell.place)
    try:
        while "live" not in names(shell) or not live_workers(shell):
            assert process.poll() is None
        refused = shell.holdfast("rm", "live", "--yes")
        assert refused.code == Exit.HELD
        assert f"process {process.pid}" in refused.line
        pruned = shell.holdfast("prune", "--unfinished", "--yes")
        assert (pruned.code, pruned.out) == (0, "there is nothing to delete\n")
        assert "live stays" in pruned.err
        # Another one can go; the file becomes smaller later.
        gone = shell.holdfast("rm", "done", "--yes")
        assert gone.code == 0
        assert "holdfast journal compact" in gone.err
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGKILL)
        end(process)
    assert "smaller" in shell.holdfast("journal", "compact").out
    assert shell.holdfast("rm", "live", "--yes").code == 0
    assert check(shell.journal).findings == []


def test_a_run_that_a_loop_consumes_stays_and_has_another_name_after_it(two: CommandLine) -> None:
    with holdfast.Delivery(two.journal, "one", groups=1) as delivery:
        next(iter(delivery))
        for arguments in (("rm", "one", "--yes"), ("rename", "one", "uno")):
            refused = two.holdfast(*arguments)
            assert refused.code == Exit.HELD
            assert "as 'trainer'" in refused.line
            assert "try again; nothing was changed" in refused.line
        assert two.holdfast("tag", "two", "keep").code == 0
        pruned = two.holdfast("prune", "--untagged", "--yes")
        assert (pruned.code, pruned.out) == (0, "")
        assert "one stays" in pruned.err
        assert pruned.err.endswith("nothing was deleted\n")
    assert two.holdfast("rename", "one", "uno").code == 0
    assert "checkpoints" not in two.holdfast("rm", "uno", "--yes").out
    assert names(two) == ["two"]


def live_workers(shell: CommandLine) -> list[str]:
    rows = json.loads(shell.holdfast("runs", "--json").out)
    return [worker for row in rows for worker in row["live_workers"]]


# --- prune


def test_prune_takes_what_fits_everything_that_is_given(two: CommandLine) -> None:
    two.finished_run(run="three")
    assert two.holdfast("tag", "one", "keep").code == 0
    dry = two.holdfast("prune", "--untagged", "--keep", 1, "--dry-run")
    head, *listed = dry.out.splitlines()
    assert head == "would delete 1 run (without --dry-run):"
    assert [line.split(":")[0].strip() for line in listed] == ["two"]
    assert names(two) == ["one", "two", "three"]
    assert two.holdfast("prune", "--untagged", "--keep", 1, "--yes").code == 0
    assert names(two) == ["one", "three"]
    assert two.holdfast("prune", "--tag", "keep", "--yes").code == 0
    assert names(two) == ["three"]


def test_prune_by_age(two: CommandLine) -> None:
    two.damage(f"UPDATE runs SET created = {time.time() - 3 * 86400} WHERE name = 'one'")
    assert (
        two.holdfast("prune", "--older-than", "4d", "--yes").out == "there is nothing to delete\n"
    )
    assert two.holdfast("prune", "--older-than", "2d", "--yes").code == 0
    assert names(two) == ["two"]


@pytest.fixture(scope="module")
def untouched(module_engine, tmp_path_factory) -> CommandLine:
    """As `two`, for commands that change nothing."""
    shell = CommandLine(tmp_path_factory.mktemp("untouched"), module_engine)
    for name in ("one", "two"):
        shell.finished_run(run=name)
    return shell


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("prune", "--yes"), "--older-than"),
        (("prune", "--older-than", "3"), "30d"),
        (("rm",), "RUN"),
        (("rm", "one", "--journal", "none.db", "--yes"), "none.db"),
        (("rename", "one", "two"), "exists already"),
        (("rename", "one", "a/b"), "name"),
        (("tag", "one", "a,b"), "comma"),
        (("tag", "one", "--remove", "x"), "'x'"),
    ],
)
def test_a_mistake_is_one_line(untouched: CommandLine, arguments, named) -> None:
    done = untouched.holdfast(*arguments)
    assert done.code == Exit.USAGE
    assert named in done.line
    assert names(untouched) == ["one", "two"]


# --- names


def test_tags_are_added_listed_and_removed(two: CommandLine) -> None:
    assert two.holdfast("tag", "one", "best", "sweep 3").out == "best, sweep 3\n"
    assert "tags best, sweep 3" in two.holdfast("runs").out
    assert two.holdfast("runs", "--names", "--tag", "best").out == "one\n"
    assert two.holdfast("tag", "one", "new", "--remove", "best").out == "sweep 3, new\n"
    assert two.holdfast("tag", "two").out == "no tags\n"
    two.finished_run(run="one")  # The same command again.
    assert two.holdfast("tag", "one").out == "sweep 3, new\n"


def test_the_listing_has_model_mean_reward_and_age(two: CommandLine) -> None:
    shown = json.loads(two.holdfast("show", "one", "--json").out)
    rewards = [row["reward"] for row in shown["rows"]]
    mean = sum(rewards) / len(rewards)
    out = two.holdfast("runs").out
    assert f"model {two.engine.model}, mean reward {mean:.4f} (n={len(rewards)})" in out
    assert " ago), 2 tasks" in out
    first, _ = json.loads(two.holdfast("runs", "--json").out)
    assert first["mean_reward"] == pytest.approx(mean)
    assert first["model"] == two.engine.model


def test_the_password_of_a_journal_is_not_in_what_is_said_about_it() -> None:
    text = resume_text("r", "postgresql://me:hunter22@host/db")
    assert "hunter22" not in text
    assert "host/db" in text
