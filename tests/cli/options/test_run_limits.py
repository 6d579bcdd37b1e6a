"""`--limit` and `--stop`: a part of the tasks, a part of the replies; both make another run."""

import json

import pytest

from holdfast.records.exit_codes import Exit
from holdfast.testing import FakeEngine
from support.cli.shell import CommandLine

ASKING = """
async def solve(t):
    t.add(*t.task.messages)
    await t.generate()
"""


def tasks_of(shell, run="r") -> list[str]:
    rows = json.loads(shell.holdfast("show", run, "--json").out)["rows"]
    return [row["key"]["task"] for row in rows]


def test_the_first_tasks_of_a_file_are_a_run_of_their_own(shell):
    shell.tasks("a", "b", "c")
    shell.finished_run("--limit", 2)
    assert tasks_of(shell) == ["a", "b"]
    before = shell.engine.stats().requests
    shell.finished_run("--limit", 2)
    assert shell.engine.stats().requests == before, "the same command goes on"
    for more in ((), ("--limit", 3)):
        done = shell.run(*more)
        assert done.code == Exit.CHANGED
        assert "  tasks: 1 added (c)" in done.err.splitlines()
    shell.finished_run("--accept-changes")
    assert tasks_of(shell) == ["a", "b", "c"]


def test_a_limit_beyond_the_file_is_none(shell):
    shell.finished_run("--limit", 99)
    assert tasks_of(shell) == ["sum", "long-one"]
    shell.finished_run()


def test_a_gateway_serves_the_first_tasks_alone(shell):
    arguments = ("gateway", "--tasks", "tasks.jsonl", "--run", "r", "--policy", shell.engine.url)
    done = shell.holdfast(*arguments, "--limit", 1, "--run-deadline", 0.5, "--grace", 0)
    assert done.code == Exit.STOPPED, done.err
    assert tasks_of(shell) == ["sum"]


def test_a_bad_line_is_told_although_no_task_of_it_is_wanted(shell):
    path = shell.tasks("a", "b")
    path.write_text(path.read_text() + "[]\n")
    done = shell.run("--limit", 1)
    assert done.code == Exit.USAGE
    assert "tasks.jsonl:3" in done.line


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--limit", "0", "argument --limit: must be 1 or more, not 0"),
        ("--stop", "", "argument --stop: wants a text, not an empty one"),
    ],
)
def test_no_tasks_and_no_text_to_stop_at_are_refused(shell, option, value, message):
    done = shell.run(option, value)
    assert done.code == Exit.USAGE
    assert message in done.line
    assert not shell.journal.exists()


def test_a_reply_ends_where_a_text_is_said_that_stops_it(tmp_path):
    with FakeEngine(replies=["one two three four"]) as engine:
        shell = CommandLine(tmp_path, engine)
        shell.write("agent.py", ASKING)
        shell.tasks("a")
        shell.finished_run("--stop", "never", "--stop", "two", run="stopped")
        (whole,) = shell.export("trajectories", run="stopped").splitlines()
        assert json.loads(whole)["turns"][0]["reply"]["content"].rstrip() == "one two"
        done = shell.run(run="stopped")
        assert done.code == Exit.CHANGED
        assert "  sampling.stop: recorded ('never', 'two'), now none" in done.err.splitlines()
