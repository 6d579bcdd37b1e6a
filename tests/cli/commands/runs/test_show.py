"""`holdfast runs` and `holdfast show`: what is recorded, for people and for scripts."""

import json
import re

import pytest

from holdfast.records.exit_codes import Exit
from holdfast.testing import FakeEngine, Fault, FaultKind
from support.cli.shell import CommandLine, end, start

ODD = [
    "a/b/0",
    "a/b",
    "r/x",
    "two words",
    "new\nline",
    "crab 🦀",
    "family 👨‍👩‍👧",
    "שלום",
    "bell\x07\x1b[31m",
    "x" * 200,
]
DIVERGING = """
import os
import holdfast


async def solve(t: holdfast.Rollout) -> None:
    t.add(*t.task.messages)
    await t.generate(max_tokens=5)
    t.add(os.environ.get("SAYS", "first"))
    await t.generate()
    await t.value(lambda: {"seen": [1, 2]}, name="notes")
    if "SAYS" not in os.environ:
        raise RuntimeError("not yet")
"""
BRANCHING = """
import holdfast
from holdfast.records.message import FunctionCall, Message


async def look_up(word: str) -> str:
    return f"{word} is found"


async def solve(t: holdfast.Rollout) -> None:
    call = holdfast.ToolCall("c1", FunctionCall("look_up", '{"word": "crab"}'))
    t.add(*t.task.messages, Message("assistant", tool_calls=(call,)))
    await t.tool(call, look_up)
    await t.generate(max_tokens=5)
    await t.branch(with_another_tool)


async def with_another_tool(t: holdfast.Rollout) -> None:
    t.add("and now?")
    await t.generate(tools=[look_up], max_tokens=5)
"""


ADDING = """
async def solve(t):
    t.add(*t.task.messages)
    await t.generate()
    t.add("You won.", {"role": "assistant", "content": "Thank you."})


def score(trajectory):
    return 1.0
"""


@pytest.fixture(scope="module")
def ran(module_engine, tmp_path_factory):
    """A run with outcomes of all kinds, made once."""
    shell = CommandLine(tmp_path_factory.mktemp("show"), module_engine)
    module_engine.set_faults(Fault(FaultKind.ERROR_500, matching="sum/0"))
    shell.tasks("sum", "long-one", "bug")
    shell.finished_run("--samples", 2)
    return shell


@pytest.fixture(scope="module")
def odd(module_engine, tmp_path_factory):
    shell = CommandLine(tmp_path_factory.mktemp("odd"), module_engine)
    lines = [json.dumps({"id": name, "prompt": f"<{name}>\n🦀 עברית"}) for name in ODD]
    shell.write("tasks.jsonl", "\n".join(lines))
    shell.finished_run()
    return shell


def show(shell, *arguments) -> str:
    done = shell.holdfast("show", "r", *arguments)
    assert done.code == 0, done.err
    assert done.err == ""
    return done.out


def test_runs_are_listed_with_how_far_they_are(ran):
    done = ran.holdfast("runs")
    assert done.code == 0
    assert "3 tasks × 2 samples, 6 of 6 settled (3 COMPLETED, 2 TRUNCATED, 1 FAILED)" in done.out
    (row,) = json.loads(ran.holdfast("runs", "--json").out)
    assert set(row) == {
        *("name", "created", "tasks", "samples", "by_status", "settled", "live_workers"),
        *("sealed", "consumers", "model", "mean_reward", "rewards", "tags", "command", "over"),
    }
    assert row["by_status"] == {"COMPLETED": 3, "TRUNCATED": 2, "FAILED": 1}


def test_a_run_is_shown_with_its_failures_grouped_and_its_trajectories(ran):
    text = show(ran)
    assert "run r: 6 trajectories: 3 COMPLETED, 2 TRUNCATED, 1 FAILED" in text
    assert "truncated: 2 max_turns" in text
    assert "calls retried" in text
    assert "KeyError: 'a bug in bug'" in text
    assert "agent.py" in text, "one full traceback"
    assert "sum/0       COMPLETED  reward " in text


def test_a_status_that_no_trajectory_has_is_said_so(ran):
    shown = ran.holdfast("show", "r", "--status", "pending")
    assert shown.out.splitlines()[-1] == "no trajectory is PENDING"


def test_a_run_as_json_has_stable_keys(ran):
    data = json.loads(show(ran, "--json"))
    assert {"run", "trajectories", "by_status", "causes", "spec", "changes", "rows"} <= set(data)
    assert data["spec"]["samples"] == 2
    assert len(data["rows"]) == 6
    assert set(data["rows"][0]) == {
        *("key", "id", "ordinal", "status", "settled", "epoch", "records", "owner"),
        *("resting", "reward", "reason"),
    }
    assert data["rows"][0]["key"] == {"run": "r", "task": "sum", "sample": 0}


def test_a_trajectory_is_shown_turn_by_turn(ran):
    text = show(ran, "sum/1")
    head, used, attempt, sampling, *turns = text.splitlines()
    assert head.startswith("r/sum/1: COMPLETED, reward ")
    assert re.search(r"1 attempt, 2 turns, \d+ sampled tokens$", head), (
        "what did not happen is left out"
    )
    assert re.fullmatch(r"  fake: [\d,]+ tokens of prompts and \d+ of replies", used)
    assert attempt.startswith("attempt 1: ")
    assert sampling == "sampled with max_tokens 12:"
    assert turns[0] == "user: do sum"
    assert turns[1].startswith("[0] assistant (")
    assert "version unknown, 1 try)" in turns[1]
    assert turns[2].startswith("[1] tool look_up(")
    assert turns[3] == "sampled with the defaults:"
    assert turns[4].startswith("user: so: ")
    assert turns[5].startswith("[2] assistant (")
    assert "2 tries" in show(ran, "sum/0")


def test_a_failed_trajectory_is_shown_with_its_last_traceback(ran):
    text = show(ran, "bug/0")
    assert "r/bug/0: FAILED (KeyError: 'a bug in bug'), reward none, 2 attempts" in text
    assert "attempt 1 failed in its rollout at step 2 [code]:" in text
    assert "attempt 2 failed in its rollout" in text
    assert "attempt 1 failed in its rollout at step 2 [code]: KeyError: 'a bug in bug'\n" in text
    assert text.count("    KeyError: 'a bug in bug'") == 1
    assert show(ran, "bug/0", "--full-tracebacks").count("    KeyError: 'a bug in bug'") == 2


def test_a_failure_is_shown_with_the_numbers_that_it_named(shell):
    shell.write("agent.py", "async def solve(t):\n    raise ValueError('there is no Taxi-v4')\n")
    shell.tasks("a")
    done = shell.finished_run()
    assert "run r: 1 trajectory: 1 FAILED" in done.out
    assert "a/0: FAILED (ValueError: there is no Taxi-v4), reward none" in show(shell, "a/0")


def test_a_processor_that_cannot_work_is_refused_before_anything_is_run(shell):
    made = "import holdfast\nagent = holdfast.AgentRolloutProcessor(['search'])\n"
    shell.write("agent.py", made)
    done = shell.run()
    assert done.code == Exit.USAGE
    assert done.err.splitlines()[-1].endswith("'search' is not a tool: give a function or a Tool")
    assert done.err.count("  File ") == 1, "the user's line, and none of ours"
    assert not shell.journal.exists()


def test_a_trajectory_as_json_has_stable_keys(ran):
    data = json.loads(show(ran, "bug/0", "--json"))
    assert set(data) == {
        *("trajectory", "task", "sample", "status", "reason", "reward", "metrics", "reasons"),
        *("messages", "turns", "tools", "sampled_tokens", "attempts", "failures", "refills"),
        *("forks", "prefix_breaks", "attempt_records", "failure_records", "environment_steps"),
        *("ignored", "refused_calls", "usage", "cost"),
    }
    assert data["status"] == "FAILED"
    assert data["reward"] is None
    assert [attempt_record["attempt"] for attempt_record in data["attempt_records"]] == [1, 2]
    first, second = data["failure_records"]
    assert first["traceback"].endswith("KeyError: 'a bug in bug'\n")
    assert (first["cause"], second["attempt"]) == ("code", 2)
    assert [tool["name"] for tool in data["tools"]] == ["look_up"]
    assert {"prompt_tokens", "sampled_tokens", "versions", "finish_reason"} <= set(data["turns"][0])


def test_a_conversation_that_is_shown_to_a_branch_anew_has_its_calls_and_results(shell):
    shell.write("agent.py", BRANCHING)
    shell.tasks("a")
    shell.finished_run(rollout="agent.py:solve")
    text = show(shell, "a/0")
    conversation = (
        'user: do a\nassistant: \n    calls look_up({"word": "crab"})\ntool: crab is found\n'
    )
    before, branch = text.split("PREFIX BREAK")
    assert conversation in before
    assert before.count("[0] tool look_up(") == 1
    assert f"{conversation}assistant: " in before[before.index("[1] assistant (") :]
    assert branch.count("crab is found") == 0


def test_what_the_rollout_adds_after_the_last_reply_is_shown(shell):
    shell.write("agent.py", ADDING)
    shell.tasks("a")
    shell.finished_run("--scorer", "score")
    lines = show(shell, "a/0").splitlines()
    (reply,) = [at for at, line in enumerate(lines) if line.startswith("[0] assistant")]
    assert lines[reply + 1 : reply + 3] == ["user: You won.", "assistant: Thank you."]


def test_forks_and_values_are_shown(shell):
    shell.write("agent.py", DIVERGING)
    shell.tasks("a")
    shell.finished_run()
    shell.finished_run("--retry-failed", env={"SAYS": "second"})
    text = show(shell, "a/0")
    assert "r/a/0: COMPLETED" in text
    assert "forked at step 1: diverged on replay" in text
    assert "first" in text
    assert "[2] value notes: {'seen': [1, 2]}" in text
    assert "RuntimeError: not yet" in text
    (fork,) = json.loads(show(shell, "a/0", "--json"))["forks"]
    assert fork["step"] == "1"


@pytest.mark.parametrize("task", [*ODD[:6], ODD[7], ODD[9]])
def test_any_task_id_can_be_shown(odd, task):
    data = json.loads(show(odd, f"{task}/0", "--json"))
    assert data["task"] == task
    assert data["messages"][0]["content"] == f"<{task}>\n🦀 עברית"


def test_every_trajectory_is_listed_on_one_line_that_show_understands(odd):
    listed = [line.split("  ")[0] for line in show(odd).splitlines() if "  COMPLETED  " in line]
    assert len(listed) == len(ODD)
    assert listed[4] == r"new\nline/0"
    for at in (4, 8):
        assert json.loads(show(odd, listed[at], "--json"))["task"] == ODD[at]


def test_a_task_alone_and_a_whole_name_are_understood_too(odd):
    assert json.loads(show(odd, "crab 🦀", "--json"))["task"] == "crab 🦀"
    assert json.loads(show(odd, "r/two words/0", "--json"))["task"] == "two words"
    assert json.loads(show(odd, "a/b/0", "--json"))["task"] == "a/b", "the whole name goes first"


def test_control_characters_are_shown_and_not_obeyed(odd):
    text = show(odd, ODD[8])
    assert r"bell\x07\x1b[31m" in text
    assert "\x1b" not in text
    assert "\x07" not in show(odd)
    assert "🦀 עברית" in text


def test_a_locale_that_cannot_show_a_character_is_no_error(odd):
    env = {"PYTHONIOENCODING": "ascii"}
    done = odd.holdfast("show", "r", env=env)
    assert (done.code, done.err) == (0, "")
    assert r"crab \U0001f980/0" in done.out
    data = json.loads(odd.holdfast("show", "r", "crab 🦀/0", "--json", env=env).out)
    assert data["task"] == "crab 🦀"


def test_a_run_with_many_trajectories_is_listed_in_part(shell):
    shell.tasks(*(f"t{i}" for i in range(50)))
    shell.finished_run()
    assert "… and 10 more (--all)" in show(shell)
    assert "t49/0  COMPLETED" in show(shell, "--all")


def test_a_live_run_can_be_looked_at(tmp_path):
    with FakeEngine(delay=600) as engine:
        shell = CommandLine(tmp_path, engine)
        process = start(*shell.arguments("--quiet", "--grace", 0), cwd=shell.place)
        try:
            while not engine.stats().requests:
                assert process.poll() is None
            assert f"being worked on by process {process.pid}" in shell.holdfast("runs").out
            assert "2 not settled yet" in show(shell)
            assert "r/sum/0: PENDING" in show(shell, "sum/0")
            out = shell.holdfast("export", "r", "--what", "samples", "--out", "o")
            assert (out.code, out.out) == (Exit.EMPTY, "")
            assert "nothing was written: none of 2 trajectories is finished" in out.err
            assert "2 trajectories are not settled yet" in out.err
        finally:
            process.terminate()
        assert end(process).code == Exit.TERMINATED


def test_statuses_are_coloured_on_terminals_only(ran):
    plain = show(ran)
    assert "\x1b" not in plain
    painted = ran.holdfast("show", "r", env={"FORCE_COLOR": "1"}).out
    assert "\x1b[32mCOMPLETED\x1b[0m" in painted
    assert "\x1b[31mFAILED   \x1b[0m" in painted
    assert re.sub(r"\x1b\[\d+m", "", painted) == plain
    head = ran.holdfast("show", "r", "bug/0", env={"FORCE_COLOR": "1"}).out.splitlines()[0]
    assert head.startswith("r/bug/0: \x1b[31mFAILED\x1b[0m (KeyError")
    quiet = {"FORCE_COLOR": "1", "NO_COLOR": "1"}
    assert ran.holdfast("show", "r", env=quiet).out == plain


def test_columns_are_aligned_for_wide_characters(shell):
    shell.tasks("ab", "\u65e5\u672c", "long-one")
    shell.finished_run()
    rows = show(shell).splitlines()[-3:]
    assert rows[0].startswith("ab/0        COMPLETED  reward ")
    assert rows[1].startswith("\u65e5\u672c/0      COMPLETED  reward "), "each takes two cells"
    assert rows[2].startswith("long-one/0  TRUNCATED  reward ")


DIALOGUE = """
import holdfast

dialogue = holdfast.DialogueRolloutProcessor(lambda task: "You want a refund.", max_turns=2)
"""


def test_a_dialogue_begins_with_its_main_conversation_and_names_who_speaks(shell):
    shell.write("agent.py", DIALOGUE)
    shell.tasks("a")
    shell.finished_run()
    text = show(shell, "a/0")
    main, beside = text.split("\nconversation 0.0, of another speaker, fake:\n")
    lines = main.splitlines()
    assert lines[3] == "user: do a"
    assert [line.split()[1] for line in lines if line.startswith("[")] == ["assistant"] * 2
    assert any(line.startswith("user, [0.0.0] fake: ") for line in lines)
    assert beside.startswith("system: You want a refund.\nuser: Begin.\n")
    assert "\n[0.0.0] fake (" in beside


def test_a_metric_and_the_words_about_it_are_two_lines_that_differ(module_engine, tmp_path):
    shell = CommandLine(tmp_path, module_engine)
    shell.tasks("sum")
    solve = "async def solve(t):\n    t.add(*t.task.messages)\n    await t.generate(max_tokens=5)\n"
    score = "def score(t):\n    return holdfast.Score(1, {'score': 8}, {'score': 'it is fine'})\n"
    shell.write("judged.py", f"import holdfast\n{solve}{score}")
    assert shell.run(rollout="judged.py").code == Exit.OK
    assert "\n  score: 8\n  score (why): it is fine\n" in show(shell, "sum/0")


SAMPLING = """
import holdfast


async def solve(t: holdfast.Rollout) -> None:
    t.add(*t.task.messages)
    await t.generate()
    for temperature in (0.5, 0.5, 1.0):
        t.add("on")
        await t.generate(max_tokens=4, temperature=temperature, stop=["x"])
"""


def test_a_reply_without_tokens_is_shown_without_weight_versions(shell: CommandLine) -> None:
    shell.finished_run("--dialect", "chat")
    shown = shell.holdfast("show", "r", "sum").out
    assert "assistant (" in shown
    assert "version" not in shown


def test_how_replies_were_sampled_is_shown_where_it_changes(shell: CommandLine) -> None:
    shell.write("agent.py", SAMPLING)
    shell.finished_run()
    shown = shell.holdfast("show", "r", "sum").out
    assert [line for line in shown.splitlines() if line.startswith("sampled with")] == [
        'sampled with max_tokens 4, temperature 0.5, stop ["x"]:',
        'sampled with max_tokens 4, stop ["x"]:',
    ]
    turns = json.loads(shell.holdfast("show", "r", "sum", "--json").out)["turns"]
    sampling = {"max_tokens": 4, "stop": ["x"]}
    cold = sampling | {"temperature": 0.5}
    assert [turn["sampling"] for turn in turns] == [{}, cold, cold, sampling]
