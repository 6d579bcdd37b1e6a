"""`--limit` and `--stop`: a part of the tasks, a part of the replies; both make another run."""

import json

import pytest

from holdfast.records.exit_codes import Exit
from holdfast.testing import FakeEngine
from support.cli.shell import Lab

ASKING = """
async def solve(t):
    t.add(*t.task.messages)
    await t.generate()
"""


def tasks_of(lab, run="r") -> list[str]:
    rows = json.loads(lab.holdfast("show", run, "--json").out)["rows"]
    return [row["key"]["task"] for row in rows]


def test_the_first_tasks_of_a_file_are_a_run_of_their_own(lab):
    lab.tasks("a", "b", "c")
    lab.finished_run("--limit", 2)
    assert tasks_of(lab) == ["a", "b"]
    before = lab.engine.stats().requests
    lab.finished_run("--limit", 2)
    assert lab.engine.stats().requests == before, "the same command goes on"
    for more in ((), ("--limit", 3)):
        done = lab.run(*more)
        assert done.code == Exit.CHANGED
        assert "  tasks: 1 added (c)" in done.err.splitlines()
    lab.finished_run("--accept-changes")
    assert tasks_of(lab) == ["a", "b", "c"]


def test_a_limit_beyond_the_file_is_none(lab):
    lab.finished_run("--limit", 99)
    assert tasks_of(lab) == ["sum", "long-one"]
    lab.finished_run()


def test_a_gateway_serves_the_first_tasks_alone(lab):
    words = ("gateway", "--tasks", "tasks.jsonl", "--run", "r", "--policy", lab.engine.url)
    done = lab.holdfast(*words, "--limit", 1, "--run-deadline", 0.5, "--grace", 0)
    assert done.code == Exit.STOPPED, done.err
    assert tasks_of(lab) == ["sum"]


def test_a_bad_line_is_told_although_no_task_of_it_is_wanted(lab):
    path = lab.tasks("a", "b")
    path.write_text(path.read_text() + "[]\n")
    done = lab.run("--limit", 1)
    assert done.code == Exit.USAGE
    assert "tasks.jsonl:3" in done.line


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--limit", "0", "argument --limit: must be 1 or more, not 0"),
        ("--stop", "", "argument --stop: wants a text, not an empty one"),
    ],
)
def test_no_tasks_and_no_text_to_stop_at_are_refused(lab, option, value, said):
    done = lab.run(option, value)
    assert done.code == Exit.USAGE
    assert said in done.line
    assert not lab.journal.exists()


def test_a_reply_ends_where_a_text_is_said_that_stops_it(tmp_path):
    with FakeEngine(replies=["one two three four"]) as engine:
        lab = Lab(tmp_path, engine)
        lab.write("agent.py", ASKING)
        lab.tasks("a")
        lab.finished_run("--stop", "never", "--stop", "two", run="stopped")
        (whole,) = lab.export("trajectories", run="stopped").splitlines()
        assert json.loads(whole)["turns"][0]["reply"]["content"].rstrip() == "one two"
        done = lab.run(run="stopped")
        assert done.code == Exit.CHANGED
        assert "  sampling.stop: recorded ('never', 'two'), now none" in done.err.splitlines()
