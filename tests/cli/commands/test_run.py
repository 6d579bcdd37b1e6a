"""The same command goes on; another one is refused with what differs, unless it is accepted."""

import json
import shutil

import pytest

from holdfast.records.exit_codes import Exit
from holdfast.testing import FakeEngine, Fault, FaultKind
from support.cli.shell import AGENT, CommandLine


@pytest.fixture(scope="module")
def template(module_engine, tmp_path_factory):
    """A finished run of two tasks, made once."""
    shell = CommandLine(tmp_path_factory.mktemp("template"), module_engine)
    shell.finished_run("--samples", 2)
    return shell


@pytest.fixture
def ran(shell, template):
    shutil.copy(template.journal, shell.journal)
    return shell


def shown(shell, run="r") -> dict:
    done = shell.holdfast("show", run, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_the_same_command_again_does_nothing_more(ran):
    before = ran.recorded()
    done = ran.finished_run("--samples", 2)
    assert "4 trajectories: 2 COMPLETED, 2 TRUNCATED" in done.out
    assert ran.engine.stats().requests == 0
    assert ran.recorded() == before


def test_what_is_no_part_of_the_identity_may_change(ran, tmp_path_factory):
    with FakeEngine(mean_length=10) as other:
        done = ran.finished_run(
            "--samples", 2, "--concurrency", 3, "--max-retry", 0, "--patience", 1, "--lease", 9,
            "--attempt-deadline", 60, "--scorer-tries", 1, "--on-divergence", "fail",
            "--fail-on-permanent-failure", policy=other.url,
        )  # fmt: skip
        assert other.stats().requests == 0
    assert "differ" not in done.err
    assert not shown(ran)["changes"]


def test_other_settings_are_refused_with_a_line_for_each_difference(ran):
    before = ran.recorded()
    others = {"samples": 3, "seed": 8, "temperature": 0.5, "max-tokens": 9, "group-refill": 5}
    done = ran.run(**others)
    assert done.code == Exit.CHANGED
    head, *listed, advice = done.err.splitlines()
    assert head == "holdfast: run 'r' is recorded differently:"
    assert [line.strip() for line in listed] == [
        "samples: recorded 2, now 3",
        "sampling.max_tokens: recorded 1024, now 9",
        "sampling.temperature: recorded 1.0, now 0.5",
        "seed: recorded 7, now 8",
        "group.refill: recorded 1, now 5",
    ]
    assert "--new" in advice
    assert "--accept-changes" in advice
    assert ran.recorded() == before
    assert ran.engine.stats().requests == 0


@pytest.mark.parametrize("option", [("--samples", 1), ("--seed", 8), ("--top-p", 0.9)])
def test_one_setting_that_differs_is_enough(ran, option):
    done = ran.run("--samples", 2, *option)
    assert done.code == Exit.CHANGED
    assert len(done.err.splitlines()) == 3


def test_other_code_is_refused_by_the_name_of_what_changed(ran):
    ran.write("agent.py", AGENT.replace("so: ", "thus: ").replace("/ 100", "/ 200"))
    done = ran.run(samples=2)
    assert done.code == Exit.CHANGED
    rollout, scorer = (line.strip() for line in done.err.splitlines()[1:-1])
    assert rollout.startswith("rollout: recorded 'solve@")
    assert rollout.endswith("(changed: solve)")
    assert scorer.startswith("scorer: recorded 'score@")
    assert scorer.endswith("(changed: score)")


def test_code_that_neither_names_is_no_other_code(ran):
    ran.write("agent.py", AGENT + "\nANOTHER = 'thought'\n")
    ran.finished_run("--samples", 2)
    assert ran.engine.stats().requests == 0


def test_a_comment_is_no_other_code(ran):
    ran.write("agent.py", AGENT + "\n# another thought\n")
    done = ran.finished_run("--samples", 2)
    assert "differ" not in done.err
    assert ran.engine.stats().requests == 0


def test_a_changed_prompt_in_a_helper_is_refused_by_its_name(shell):
    text = AGENT.replace("t.add(*t.task.messages)", "t.add(texts.PROMPT, *t.task.messages)")
    shell.write("texts.py", "PROMPT = 'be brief'\n")
    shell.write("agent.py", "import texts\n" + text)
    shell.finished_run()
    shell.write("texts.py", "# Shorter.\nPROMPT = 'be brief'\n")
    shell.finished_run()
    shell.write("texts.py", "PROMPT = 'be verbose'\n")
    done = shell.run()
    assert done.code == Exit.CHANGED
    (rollout,) = (line.strip() for line in done.err.splitlines()[1:-1])
    assert rollout.startswith("rollout: recorded 'solve@")
    assert rollout.endswith("(changed: texts.PROMPT)")
    shell.finished_run("--accept-changes")
    assert shown(shell)["changes"]
    shell.finished_run()


def test_what_an_object_was_made_with_is_refused_by_its_name(shell):
    library = (
        "from agent import solve as inner\n"
        "from holdfast.rollout.processors.processor import RolloutProcessor, as_processor\n"
        "class Solver(RolloutProcessor):\n"
        "    def __init__(self, prompt):\n        self.prompt = prompt\n"
        "    def __call__(self, tasks, config):\n"
        "        return as_processor(inner)(tasks, config)\n"
        "class Judge:\n"
        "    def __init__(self, words):\n        self.words = words\n"
        "    def __call__(self, trajectory):\n        return 1.0\n"
    )
    text = (
        "from library import Solver, Judge\nsolve = Solver('Be terse.')\nscore = Judge('Good?')\n"
    )
    shell.write("library.py", library)
    shell.write("made.py", text)
    shell.finished_run(rollout="made.py:solve")
    shell.write("made.py", f"# The same.\n{text}")
    shell.finished_run(rollout="made.py:solve")
    shell.write("made.py", text.replace("terse", "verbose").replace("Good", "Bad"))
    done = shell.run(rollout="made.py:solve")
    assert done.code == Exit.CHANGED
    rollout, scorer = (line.strip() for line in done.err.splitlines()[1:-1])
    assert rollout.startswith("rollout: recorded 'Solver@")
    assert rollout.endswith("(changed: prompt)")
    assert scorer.startswith("scorer: recorded 'Judge@")
    assert scorer.endswith("(changed: words)")


def test_a_scorer_where_there_was_none_is_told_so_and_is_no_version_of_another(shell):
    scored = (shell.place / "agent.py").read_text()
    shell.write("points.py", "def count(trajectory):\n    return 1\n")
    shell.write("agent.py", scored[: scored.index("def score")])
    shell.finished_run()
    done = shell.run(scorer="points.py:count")
    assert done.code == Exit.CHANGED
    (line,) = done.err.splitlines()[1:-1]
    assert line.strip().startswith("scorer: recorded none, now 'count@")
    assert "another version" not in line


def test_another_scorer_in_a_file_of_its_own_changes_the_scorer_alone(shell):
    shell.write("points.py", "def count(trajectory):\n    return 1\n")
    shell.finished_run(scorer="points.py:count")
    shell.write("points.py", "def count(trajectory):\n    return 2\n")
    done = shell.run(scorer="points.py:count")
    assert done.code == Exit.CHANGED
    (line,) = done.err.splitlines()[1:-1]
    assert line.strip().startswith("scorer: recorded 'count@")


def test_what_is_only_to_be_scored_needs_no_engine(ran):
    ran.write("agent.py", AGENT.replace("/ 100", "/ 200"))
    gone = {"policy": "http://127.0.0.1:9", "samples": 2}
    done = ran.run("--accept-changes", **gone)
    assert done.code == Exit.OK, done.err
    assert "4 trajectories: 2 COMPLETED, 2 TRUNCATED" in done.out
    assert shown(ran)["changes"]
    assert ran.run("--retry-failed", **gone).code == Exit.STOPPED
    assert ran.run("--accept-changes", **{**gone, "samples": 3}).code == Exit.STOPPED
    assert ran.engine.stats().requests == 0


def test_another_model_is_refused(ran):
    with FakeEngine(model="other") as other:
        done = ran.run(samples=2, policy=other.url, model="other")
    assert done.code == Exit.CHANGED
    assert "  model: recorded 'fake', now 'other'" in done.err.splitlines()


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (("sum", "long-one", "extra"), "tasks: 1 added (extra)"),
        (("long-one", "sum"), "tasks: in another order"),
        (("a", "b", "c\nd", "e", "sum"), r"tasks: 4 added (a, b, c\nd, …), 1 removed (long-one)"),
    ],
)
def test_another_task_file_is_refused_with_the_tasks_that_differ(ran, ids, message):
    ran.tasks(*ids)
    done = ran.run(samples=2)
    assert done.code == Exit.CHANGED
    assert [line.strip() for line in done.err.splitlines()[1:-1]] == [message]


def test_a_task_with_another_prompt_is_named(ran):
    ran.write("tasks.jsonl", ran.tasks("sum", "long-one").read_text().replace("do sum", "do it"))
    assert "  tasks: 1 changed (sum)" in ran.run(samples=2).err.splitlines()


def test_new_starts_another_run_and_says_its_name(ran):
    done = ran.finished_run("--new", "--samples", 3)
    assert "this one is 'r-2'" in done.err
    assert "run r-2: 6 trajectories" in done.out
    assert "this one is 'r-3'" in ran.finished_run("--new", "--samples", 3).err
    assert [run["name"] for run in json.loads(ran.holdfast("runs", "--json").out)] == [
        *("r", "r-2", "r-3")
    ]


def test_new_with_a_free_name_takes_it(shell):
    done = shell.finished_run("--new", "--quiet")
    assert done.err == ""
    assert "run r: " in done.out


def test_the_name_of_another_run_is_told_as_a_shell_takes_it(shell):
    shell.finished_run(run="a b")
    done = shell.finished_run("--new", "--quiet", run="a b")
    assert "this one is 'a b-2': go on with it by --run 'a b-2', without --new" in done.line


def test_what_would_not_be_accepted_is_not_advised(ran):
    before = ran.recorded()
    ran.write("tasks.jsonl", ran.tasks("sum", "long-one").read_text().replace("do sum", "do it"))
    fewer = "the samples of run 'r' can grow, not shrink: 2 or more"
    other = "1 task has been worked on and now asks something else (sum): give it another id"
    done = ran.run(samples=1)
    assert done.code == Exit.CHANGED
    assert done.err.splitlines()[-1] == (
        f"the run cannot go on with these changes, not even with --accept-changes: {fewer}; {other}"
        ", or use --new to start another run (from Python: another name)"
    )
    assert "or --accept-changes" not in done.err
    accepted = ran.run("--accept-changes", samples=1)
    assert (accepted.code, accepted.err) == (Exit.CHANGED, done.err), "it changes nothing"
    assert ran.recorded() == before


def test_a_corrected_answer_is_no_other_question_and_is_scored_anew(ran):
    rows = [json.loads(line) for line in ran.tasks("sum", "long-one").read_text().splitlines()]
    rows = [{**row, "ground_truth": "corrected"} for row in rows]
    ran.write("tasks.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))
    text = "another ground_truth of sum, long-one: what is finished is scored anew"
    request = ran.run(samples=2)
    assert request.code == Exit.CHANGED
    assert f"tasks: 2 changed (sum, long-one) ({text})" in request.err
    assert "or --accept-changes to go on with this one" in request.err
    before = ran.engine.stats().requests
    done = ran.run("--accept-changes", samples=2)
    assert done.code == Exit.OK, done.err
    assert f"run 'r': {text}" in done.err.splitlines()
    assert ran.engine.stats().requests == before, "nothing is sampled for it"
    rows[0]["note"] = "by hand"
    ran.write("tasks.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))
    other = ran.run("--accept-changes", samples=2)
    assert other.code == Exit.CHANGED
    assert "1 task has been worked on, and its metadata changed (sum): give it" in other.err


@pytest.mark.parametrize(
    ("form", "new"), [(("--run", "r"), "--new"), (("--run=r",), "--fresh")], ids=str
)
def test_the_command_that_goes_on_names_the_run_that_was_started(ran, form, new):
    # Every call of this run waits for longer than the run may take.
    ran.engine.set_faults(Fault(FaultKind.SLOW, seconds=600, times=0))
    arguments = ran.arguments(new, "--samples", 3, "--run-deadline", 0.5, "--grace", 0, "--quiet")
    at = arguments.index("--run")
    done = ran.holdfast(*arguments[:at], *form, *arguments[at + 2 :])
    assert done.code == Exit.STOPPED, done.err
    (line,) = [line for line in done.err.splitlines() if line.startswith("to go on: holdfast ")]
    assert new not in line
    assert "r-2" in line
    ran.engine.set_faults()
    resumed = ran.holdfast(*line.removeprefix("to go on: holdfast ").split(), "--run-deadline", 600)
    assert resumed.code == Exit.OK, resumed.err
    assert "run r-2: 6 trajectories" in resumed.out


def test_accepted_changes_go_on_and_are_shown(ran):
    ran.finished_run("--accept-changes", samples=3, temperature=0.5)
    assert ran.engine.stats().requests == 4, "two tasks × one more sample × two turns"
    (change,) = shown(ran)["changes"]
    assert change["differences"] == [
        "samples: recorded 2, now 3",
        "sampling.temperature: recorded 1.0, now 0.5",
    ]
    text = ran.holdfast("show", "r").out
    assert "changes accepted" in text
    assert "  samples: recorded 2, now 3" in text.splitlines()
    # From now on, this is the run.
    ran.engine.reset()
    ran.finished_run(samples=3, temperature=0.5)
    assert ran.engine.stats().requests == 0
    assert ran.run(samples=2).code == Exit.CHANGED


def test_added_tasks_are_run_and_removed_ones_keep_what_they_have(ran):
    ran.tasks("sum", "extra")
    done = ran.finished_run("--accept-changes", samples=2)
    assert "tasks: 1 added (extra), 1 removed (long-one)" in str(shown(ran)["changes"])
    assert ran.engine.stats().requests == 4
    assert "COMPLETED" in done.out
    rows = {(row["key"]["task"], row["status"]) for row in shown(ran)["rows"]}
    assert rows == {("sum", "COMPLETED"), ("long-one", "TRUNCATED"), ("extra", "COMPLETED")}
    ran.tasks("sum", "long-one", "extra")
    ran.finished_run("--accept-changes", samples=2)
    assert ran.engine.stats().requests == 4, "what came back is still there"


def test_failed_ones_are_tried_again_when_asked(shell):
    shell.tasks("bug-1", "sum")
    done = shell.run("--samples", 2, "--fail-on-permanent-failure")
    assert done.code == Exit.FAILURES
    assert "KeyError" in done.out
    assert shell.finished_run("--samples", 2).code == Exit.OK
    requests = shell.engine.stats().requests
    done = shell.finished_run("--samples", 2, "--retry-failed", env={"MENDED": "1"})
    assert "FAILED" not in done.out
    assert shell.engine.stats().requests == requests, "what was generated is replayed"
