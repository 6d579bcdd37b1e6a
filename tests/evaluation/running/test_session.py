"""Several modules, several workers, one journal; and what a session leaves behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from holdfast.evaluation.running import experiment
from support.evaluation.evaluation_project import EvaluationProject
from support.paths import DOCS

ONE = """
@evaluation_test(dataset=ROWS, passed_threshold={threshold})
def test_{name}(row):
    return {score}
"""


def test_two_modules_share_a_journal(project: EvaluationProject) -> None:
    project.write(ONE.format(name="first", score=1.0, threshold=0.5), "test_a.py")
    project.write(ONE.format(name="second", score=0.5, threshold=0.5), "test_b.py")
    project.run().assert_outcomes(passed=2)
    assert sorted(project.runs()) == ["test_a.test_first", "test_b.test_second"]
    assert [outcome["test"] for outcome in project.outcomes()] == [
        "test_a.py::test_first",
        "test_b.py::test_second",
    ]
    ignored = project.folder / ".holdfast" / ".gitignore"
    assert "*" in ignored.read_text().splitlines()


def test_a_module_with_a_syntax_error_is_pytests_own_error(project: EvaluationProject) -> None:
    project.write("def broken(:\n    pass\n", "test_a.py")
    project.write(ONE.format(name="good", score=1.0, threshold=0.5), "test_b.py")
    result = project.run("--continue-on-collection-errors")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*SyntaxError*"])
    assert project.only()["agg_score"] == 1.0


def test_plain_tests_stand_beside_evaluations(project: EvaluationProject) -> None:
    project.write(
        ONE.format(name="it", score=1.0, threshold=0.5)
        + "\n\ndef test_plain(tmp_path):\n    assert tmp_path\n"
    )
    project.run().assert_outcomes(passed=2)
    assert len(project.outcomes()) == 1


def test_four_workers_share_a_journal_and_one_summary_is_written(
    project: EvaluationProject,
) -> None:
    for number in range(6):
        project.write(
            ONE.format(name=f"number{number}", score=number / 10, threshold=0.15),
            f"test_m{number}.py",
        )
    workers = project.apart("-p", "xdist.plugin", "-n", 4, "-q", "--junitxml", "junit.xml")
    out, _ = workers.communicate(timeout=200)
    assert "4 passed" in out, out
    assert "2 failed" in out, out
    scores = [outcome["runs"][0]["agg_score"] for outcome in project.outcomes()]
    assert scores == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
    assert len(project.runs()) == 6
    assert all(states == {"COMPLETED": 4} for states in project.runs().values())
    assert project.engine.stats().requests == 24
    assert "= evaluations =" in out
    assert "test_m5.test_number5: 0.5000  PASSED" in out
    cases = ElementTree.parse(project.folder / "junit.xml").getroot().iter("testcase")
    messages = [
        {item.get("name"): item.get("value") for item in case.iter("property")} for case in cases
    ]
    by_run = {message["run"]: message for message in messages}
    assert len(by_run) == 6
    assert by_run["test_m3.test_number3"]["score"] == "0.3"
    assert by_run["test_m3.test_number3"]["rows"] == "4"
    assert by_run["test_m3.test_number3"]["failed"] == "0"
    assert by_run["test_m3.test_number3"]["standard_error"] == "0.0"
    assert by_run["test_m3.test_number3"]["journal"] == str(project.journal)
    project.run().assert_outcomes(passed=4, failed=2)
    assert project.engine.stats().requests == 24


def test_a_session_without_evaluations_writes_an_empty_summary(
    project: EvaluationProject,
) -> None:
    project.write("def test_plain():\n    pass\n", head="")
    result = project.run()
    result.assert_outcomes(passed=1)
    assert project.outcomes() == []
    result.stdout.no_fnmatch_line("*= evaluations =*")
    assert not (project.folder / ".holdfast").exists()


SLOW = """
import asyncio
from pathlib import Path

async def answer(t: Rollout):
    t.add(*t.task.messages)
    await t.generate()
    number = int(t.task.id)
    while number >= 8 and not Path("go" if number < 10 else "again").exists():
        await asyncio.sleep(0.01)

@evaluation_test(
    dataset=[{"id": str(n), "prompt": f"What is {n}?"} for n in range(40)],
    rollout_processor=answer,
    max_concurrent_rollouts=2,
)
async def test_slow(row):
    await asyncio.sleep(0.05)
    return 1.0

def test_after():
    raise AssertionError("the session is over")
"""


def interrupted(project: EvaluationProject, number: signal.Signals) -> tuple[int, str]:
    """A session that is sent a signal when eight rows are done, and two in flight."""
    child = project.apart()
    try:
        deadline = time.monotonic() + 120
        while project.engine.stats().completions < 10:
            assert time.monotonic() < deadline, "it does not get on"
            assert child.poll() is None, child.communicate()[0]
            time.sleep(0.02)
        os.kill(child.pid, number)
        (project.folder / "go").touch()
        out, _ = child.communicate(timeout=120)
    finally:
        if child.poll() is None:
            child.kill()
            child.communicate()
    return child.returncode, out


def goes_on(project: EvaluationProject) -> None:
    done = project.engine.stats().completions
    assert done < 40
    (states,) = project.runs().values()
    assert states["COMPLETED"] >= 1
    (project.folder / "again").touch()
    result = project.run("--deselect", "test_it.py::test_after")
    result.assert_outcomes(passed=1, deselected=1)
    assert project.only()["scored"] == 40
    assert project.engine.stats().requests == 40, "what was in flight became durable"


def test_ctrl_c_keeps_what_is_done_and_the_same_command_goes_on(
    project: EvaluationProject,
) -> None:
    project.write(SLOW)
    code, out = interrupted(project, signal.SIGINT)
    assert code == 2, out
    assert "KeyboardInterrupt" in out
    assert "SIGINT: stopped; what is done is kept, the same command goes on" in out
    goes_on(project)


def test_sigterm_does_the_same(project: EvaluationProject) -> None:
    project.write(SLOW)
    code, out = interrupted(project, signal.SIGTERM)
    assert code == 2, out
    assert "SIGTERM: stopped; what is done is kept, the same command goes on" in out
    goes_on(project)


def test_a_held_run_is_refused_by_name(project: EvaluationProject) -> None:
    project.write(SLOW)
    child = project.apart("-k", "slow")
    try:
        while not project.engine.stats().completions:
            assert child.poll() is None
            time.sleep(0.02)
        result = project.run("-k", "slow", "--holdfast-summary", "other.json")
        result.assert_outcomes(failed=1, deselected=1)
        result.stdout.fnmatch_lines(
            ["*RunHeld: run 'test_it.test_slow' is being worked*--holdfast-new*"]
        )
        for name in ("go", "again"):
            (project.folder / name).touch()
        out, _ = child.communicate(timeout=120)
        assert child.returncode == 0, out
    finally:
        if child.poll() is None:
            child.kill()
            child.communicate()


def test_the_summary_may_be_written_into_a_folder(project: EvaluationProject) -> None:
    project.write(ONE.format(name="it", score=1.0, threshold=0.5))
    project.run("--holdfast-summary", "new/").assert_outcomes(passed=1)
    data = json.loads((project.folder / "new" / "evaluations.json").read_text())
    assert data["evaluations"][0]["passed"] is True


def test_who_waits_is_told_how_far_it_is(
    project: EvaluationProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment, "PROGRESS_SECONDS", 0.05)
    project.write(
        """
        import asyncio

        async def slow(t: Rollout):
            await asyncio.sleep(0.2)

        @evaluation_test(dataset=ROWS, rollout_processor=slow, max_concurrent_rollouts=1)
        def test_it(row):
            return 1.0
        """
    )
    result = project.run()
    result.assert_outcomes(passed=1)
    result.stderr.fnmatch_lines(["holdfast: test_it.test_it: */4 done, * running*"])


def test_the_documented_evaluation_runs_as_it_is_documented(project: EvaluationProject) -> None:
    page = (DOCS / "evaluations.md").read_text()
    first = re.search(r"```python\n(# test_sums.py\n.*?)```", page, re.DOTALL)
    assert first is not None
    project.write(first[1], "test_sums.py", head="")
    result = project.run("--holdfast-success-threshold", 0)
    result.assert_outcomes(passed=2)
    assert [outcome["test"] for outcome in project.outcomes()] == [
        "test_sums.py::test_sums[temperature=0.2]",
        "test_sums.py::test_sums[temperature=1.0]",
    ]
    assert all(outcome["runs"][0]["scored"] == 20 for outcome in project.outcomes())


def interrupted_at(process: "subprocess.Popen[str]", sign: Path) -> bool:
    """Sends a signal, and gives it time to be heard."""
    process.send_signal(signal.SIGINT)
    for _ in range(100):
        if sign.exists():
            return True
        time.sleep(0.05)
    return False


def test_code_that_keeps_the_loop_busy_can_be_interrupted(project: EvaluationProject) -> None:
    project.write(
        """
        import time
        from pathlib import Path

        def rows():
            Path("begun").touch()
            try:
                time.sleep(600)
            except KeyboardInterrupt:
                Path("interrupted").touch()
                raise
            return ROWS

        @evaluation_test(dataset=rows)
        def test_it(row):
            return 1.0
        """
    )
    process = project.apart()
    try:
        while not (project.folder / "begun").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)  # The first asks it to stop.
        time.sleep(0.3)
        while not interrupted_at(process, project.folder / "interrupted"):
            pass  # Two that came at once were one to it.
        message, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 2, message
    assert "KeyboardInterrupt" in message


def test_the_journal_is_where_it_was_whatever_path_a_flag_has(tmp_path: Path) -> None:
    """pytest itself would take the folder that the tests and the flag's file have in common."""
    project = tmp_path / "project"
    (project / "tests").mkdir(parents=True)
    (tmp_path / "prices.toml").write_text('[models."m"]\nprompt = 1\ncompletion = 1\n')
    (project / "tests" / "test_rows.py").write_text(
        "from holdfast.evaluation import NoOpRolloutProcessor, evaluation_test\n"
        "@evaluation_test(dataset=[{'id': 'a', 'prompt': 'hi'}],\n"
        "                 rollout_processor=NoOpRolloutProcessor())\n"
        "def test_rows(row):\n    return 1.0\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    flags = [[], ["--holdfast-price", "../prices.toml"], ["--holdfast-price", "../prices.toml"]]
    flags[2] += ["-n", "2"]
    for more in flags:
        done = subprocess.run([*command, *more], cwd=project, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert list(tmp_path.rglob("evaluations.db")) == [project / ".holdfast" / "evaluations.db"]
