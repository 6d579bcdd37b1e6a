"""`holdfast run --scorer` with a judge of the user's file, and `--system`."""

import json

import pytest

from holdfast.records.exit_codes import Exit
from holdfast.testing import FakeEngine
from support.cli.shell import CommandLine

JUDGED = """
import holdfast


async def solve(t):
    t.add(*t.task.messages, str(t.key.sample))  # Equal answers would be compared as one.
    await t.generate(max_tokens=12)


judge = holdfast.Judge("Is it kind?", policy="{url}")
compared = holdfast.Judge("Which is kinder?", policy="{url}", compare=True)
"""


def test_a_judge_is_a_scorer_of_the_command_line(shell: CommandLine) -> None:
    with FakeEngine(replies=['{"reason": "very kind", "score": 9}']) as engine:
        shell.write("judged.py", JUDGED.format(url=engine.url))
        done = shell.run("--scorer", "judge", rollout="judged.py")
        assert done.code == 0, done.err
        assert "mean reward: 0.9000 (n=2)" in done.out
        again = shell.run("--scorer", "judge", rollout="judged.py")
        assert again.code == 0, again.err
    shown = shell.holdfast("show", "r", "sum/0").out
    assert "score: 9" in shown
    assert "very kind" in shown


GONE = """

import os, signal


async def solve_then_kill(t):
    await solve(t)
    if os.environ.get("VICTIM"):
        os.kill(int(os.environ["VICTIM"]), signal.SIGKILL)
"""


def test_a_judge_that_stays_down_stops_the_command_and_the_same_command_only_judges(
    shell: CommandLine,
) -> None:
    with FakeEngine(replies=['{"reason": "very kind", "score": 9}']) as engine:
        shell.tasks("sum")
        shell.write("judged.py", JUDGED.format(url=engine.url) + GONE)
        arguments = ("--scorer", "judge", "--patience", "0", "--scorer-timeout", "0.5")
        rollout = "judged.py:solve_then_kill"
        stopped = shell.run(*arguments, rollout=rollout, env={"VICTIM": str(engine.pid)})
        assert stopped.code == Exit.STOPPED, stopped.err
        assert f"stopped: the judge: {engine.url} has been down" in stopped.err
        assert "to go on: holdfast run" in stopped.err
        engine.kill()
        engine.start()
        sampled = shell.engine.stats().tokens
        done = shell.run(*arguments, rollout=rollout)
        assert done.code == 0, done.err
        assert "mean reward: 0.9000 (n=1)" in done.out
        assert shell.engine.stats().tokens == sampled


def test_a_judge_compares_groups_there(shell: CommandLine) -> None:
    answer = '{"A": {"reason": "x", "score": 10}, "B": {"reason": "y", "score": 0}}'
    with FakeEngine(replies=[answer]) as engine:
        shell.write("judged.py", JUDGED.format(url=engine.url))
        done = shell.run("--scorer", "compared", "--samples", 2, rollout="judged.py")
        assert done.code == 0, done.err
    rows = [json.loads(line) for line in shell.export("trajectories").splitlines()]
    assert sorted(row["reward"] for row in rows) == [0, 0, 1, 1]


def test_a_system_message_is_part_of_the_tasks(shell: CommandLine) -> None:
    shell.finished_run("--system", "Be kind.")
    rows = [json.loads(line) for line in shell.export("trajectories").splitlines()]
    assert all(row["messages"][0] == {"role": "system", "content": "Be kind."} for row in rows)
    assert shell.run("--system", "Be rude.").code == Exit.CHANGED


QUESTIONS = """
import pathlib
import holdfast


async def solve(t):
    t.add(*t.task.messages)
    await t.generate(max_tokens=12)


judge = holdfast.Judge(pathlib.Path("rubric.txt").read_text(), policy="{url}")


async def score(trajectory):
    return (await ask(trajectory)).reward


async def ask(trajectory):
    return await judge(trajectory)
"""


def test_a_judge_that_a_function_asks_is_what_it_is_when_it_is_asked(shell: CommandLine) -> None:
    shell.write("rubric.txt", "Is it kind?")
    with FakeEngine(replies=['{"score": 9}']) as engine:
        shell.write("asked.py", QUESTIONS.format(url=engine.url))
        done = shell.run(rollout="asked.py:solve")
        assert done.code == 0, done.err
        sampled = shell.engine.stats().tokens
    with FakeEngine(replies=['{"score": 2}']) as engine:
        shell.write("asked.py", QUESTIONS.format(url=engine.url))
        shell.write("rubric.txt", "Is it brief?")
        refused = shell.run(rollout="asked.py:solve")
        assert refused.code == Exit.CHANGED, refused.err
        assert "scorer: recorded 'score@" in refused.err
        done = shell.run("--accept-changes", rollout="asked.py:solve")
        assert done.code == 0, done.err
    assert "mean reward: 0.2000 (n=2)" in done.out
    assert shell.engine.stats().tokens == sampled


def test_a_judge_that_a_function_asks_is_checked_before_anything_is_sampled(
    shell: CommandLine,
) -> None:
    shell.write("rubric.txt", "Is it kind?")
    with FakeEngine() as gone:
        shell.write("asked.py", QUESTIONS.format(url=gone.url))
    refused = shell.run(rollout="asked.py:solve")
    assert refused.code == Exit.STOPPED, refused.err
    assert f"the judge: the policy at {gone.url} does not answer" in refused.err
    assert shell.engine.stats().tokens == 0


MADE = """
import os
import pathlib
import holdfast


async def solve(t):
    t.add(*t.task.messages)
    await t.generate(max_tokens=12)


async def score(trajectory):
    rubric = pathlib.Path(__file__).with_name("rubric.txt").read_text()
    try:
        return (await holdfast.Judge(rubric, policy=os.environ["JUDGE_AT"])(trajectory)).reward
    except Exception:
        return 0.0
"""


@pytest.mark.parametrize("options", [(), ("--score-workers", 1)], ids=["here", "in a process"])
def test_verdicts_of_a_judge_that_the_scorer_makes_are_given_anew_when_it_makes_another_one(
    shell: CommandLine, options: tuple[object, ...]
) -> None:
    shell.write("made.py", MADE)
    shell.write("rubric.txt", "Is it kind?")
    with FakeEngine(replies=['{"score": 9}']) as engine:
        arguments = {"rollout": "made.py:solve", "env": {"JUDGE_AT": engine.url}}
        done = shell.run(*options, **arguments)
        assert "mean reward: 0.9000 (n=2)" in done.out, done.err
        judged = len(engine.requests())
        again = shell.run(*options, **arguments)
        assert "mean reward: 0.9000 (n=2)" in again.out, again.err
        assert "another judge" not in again.err
        assert len(engine.requests()) == judged
    shell.write("rubric.txt", "Is it brief?")
    sampled = shell.engine.stats().tokens
    with FakeEngine(replies=['{"score": 2}']) as engine:
        arguments["env"] = {"JUDGE_AT": engine.url}
        other = shell.run(*options, **arguments)
    assert "mean reward: 0.2000 (n=2)" in other.out, other.err
    assert "the scorer makes another judge than before; 2 of its verdicts" in other.err
    assert shell.engine.stats().tokens == sampled
