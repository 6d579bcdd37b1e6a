"""`holdfast fork`: a run of forks from a shell, and one clear line for each that cannot be."""

import json
import signal
import sys

import pytest

import holdfast
from holdfast.records.exit_codes import Exit
from holdfast.testing import FakeEngine
from support.cli.shell import CommandLine

PROGRAM = """
import json, os, urllib.request

messages = [{"role": "user", "content": "begin"}]
for turn in range(3):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "any", "messages": messages}).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"],
         "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        messages.append(json.load(answer)["choices"][0]["message"])
    messages.append({"role": "user", "content": f"after {turn}"})
"""
BLACK_BOX = f"""
import holdfast

solve = holdfast.BlackBoxRolloutProcessor([{sys.executable!r}, "-S", "program.py"])
"""


@pytest.fixture
def forked(shell: CommandLine) -> CommandLine:
    shell.finished_run()
    return shell


def messages(shell: CommandLine, run: str) -> list[str]:
    row = json.loads(shell.export("trajectories", run=run).splitlines()[0])
    return [message["content"] for message in row["messages"]]


def test_a_fork_is_a_run_that_says_where_it_comes_from(forked: CommandLine) -> None:
    done = forked.holdfast("fork", "r", "sum/0", "--at", "2", "--say", "Hm.", "--samples", 3)
    assert done.code == 0, done.err
    assert "r-fork is forked from r/sum/0 at step 2, said 'Hm.'" in done.err
    assert "run r-fork: 3 trajectories" in done.out
    assert "forked from r/sum/0 at step 2" in forked.holdfast("show", "r-fork").out
    assert "Hm." in messages(forked, "r-fork")
    row = json.loads(forked.holdfast("show", "r-fork", "--json").out)["spec"]
    assert json.loads(row["fork"])["run"] == "r"


def test_a_fork_of_a_fork_goes_on_with_another_policy(forked: CommandLine) -> None:
    assert forked.holdfast("fork", "r", "sum", "--at", "2", "--run", "one").code == 0
    forked.write("answer.txt", "another answer")
    with FakeEngine(model="other", mean_length=10) as engine:
        done = forked.holdfast(
            "fork", "one", "sum/0", "--at", "1", "--edit", "answer.txt", "--run", "two",
            "--policy", engine.url, "--model", "other", "--json",
        )  # fmt: skip
        assert done.code == 0, done.err
        assert engine.stats().requests == 1
    assert json.loads(done.out)["run"] == "two"
    assert "so: another answer" in messages(forked, "two")


def test_a_black_box_agent_is_given_the_recorded_replies_and_then_the_edit(
    shell: CommandLine,
) -> None:
    shell.write("program.py", PROGRAM)
    shell.write("black_box.py", BLACK_BOX)
    shell.tasks("sum")
    assert shell.run(rollout="black_box.py").code == 0
    shell.engine.reset()
    shell.write("other.txt", "quite another question")
    done = shell.holdfast("fork", "r", "sum/0", "--at", "1.0.0", "--edit", "other.txt")
    assert done.code == 0, done.err
    assert shell.engine.stats().requests == 2
    before, after = messages(shell, "r"), messages(shell, "r-fork")
    assert before[:2] == after[:2]
    assert (before[2], after[2]) == ("after 0", "quite another question")
    assert after[4] == "after 1"


BAD = [
    (("none", "sum/0", "--at", "2"), "there is no run 'none'"),
    (("r", "none/0", "--at", "2"), "has no trajectory 'none/0'"),
    (("r", "sum/0", "--at", "9"), "has no step '9'; its turns are at 0, 2"),
    (("r", "sum/0", "--at", "1"), "is tool look_up"),
    (("r", "sum/0", "--at", "0", "--samples", "0"), "--samples: must be 1 or more"),
    (("r", "sum/0", "--at", "0", "--say", "a", "--edit", "agent.py"), "give one of them"),
    (("r", "sum/0", "--at", "0", "--edit", "missing.txt"), "missing.txt"),
    (("r", "sum/0", "--at", "0", "--run", "r"), "there is another run 'r' already"),
    (("r", "sum/0"), "--at"),
]


def test_bad_input_is_one_line_and_writes_nothing(forked: CommandLine) -> None:
    before = forked.recorded()
    for arguments, line in BAD:
        done = forked.holdfast("fork", *arguments)
        assert done.code == Exit.USAGE, arguments
        assert line in done.line
    assert forked.recorded() == before


def test_a_damaged_log_is_refused(forked: CommandLine) -> None:
    forked.damage("UPDATE records SET body = x'00' WHERE seq = 1")
    done = forked.holdfast("fork", "r", "sum/0", "--at", "0")
    assert done.code == Exit.CORRUPT
    assert "r/sum/0 is corrupt" in done.err.splitlines()[0]


def test_a_run_that_a_program_began_is_forked_by_a_program(shell: CommandLine) -> None:
    async def ask(t: holdfast.Rollout) -> None:
        t.add(*t.task.messages)
        await t.generate()

    holdfast.run_sync(
        ask, tasks=[{"id": "t", "prompt": "?"}], journal=shell.journal, name="p",
        policy=shell.engine.url,
    )  # fmt: skip
    done = shell.holdfast("fork", "p", "t/0", "--at", "0")
    assert done.code == Exit.USAGE
    assert "has no recorded command, because a program began it" in done.line


def test_a_trajectory_without_token_ids_is_refused(shell: CommandLine) -> None:
    with FakeEngine(dialect="chat", mean_length=10) as engine:
        assert shell.run(policy=engine.url).code == 0
        done = shell.holdfast("fork", "r", "sum/0", "--at", "0")
    assert done.code == Exit.USAGE
    assert "has no token ids" in done.line


def test_forks_need_the_original_until_they_have_begun(shell: CommandLine) -> None:
    assert shell.run("--concurrency", 1).code in (Exit.OK, Exit.NOTHING)
    for begun in (1, 2):
        name, crash = f"fork{begun}", {"HOLDFAST_CRASH": f"engine.reused:{begun}"}
        arguments = ("fork", "r", "sum/0", "--at", "2", "--samples", 2, "--run", name)
        assert shell.holdfast(*arguments, env=crash).code == -signal.SIGKILL
    assert shell.holdfast("rm", "r", "--yes").code == 0
    done = shell.holdfast("resume", "fork2")
    assert done.code == 0, done.err
    assert "2 COMPLETED" in done.out
    done = shell.holdfast("resume", "fork1")
    assert done.code == Exit.USAGE
    assert "there is no run 'r' in the journal" in done.err.splitlines()[-1]
