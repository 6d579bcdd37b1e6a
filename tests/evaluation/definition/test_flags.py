"""Every flag works, under both of its names; 0 is 0; what makes no sense is refused by name."""

import json
from importlib.machinery import ModuleSpec
from typing import Any

import pytest

from holdfast.evaluation import plugin
from holdfast.evaluation.definition import flags
from holdfast.testing import FakeEngine
from support.evaluation.evaluation_project import EvaluationProject

ANY = """
@evaluation_test(dataset=ROWS{extra})
def test_it(row):
    return row.ground_truth
"""


def summary_with(
    project: EvaluationProject, *arguments: object, extra: str = ""
) -> dict[str, object]:
    project.write(ANY.format(extra=extra))
    project.run(*arguments).assert_outcomes(passed=1)
    return project.only()


@pytest.mark.parametrize("name", ["holdfast", "ep"])
def test_max_rows(project: EvaluationProject, name: str) -> None:
    assert summary_with(project, f"--{name}-max-rows", 2)["rows"] == 2
    assert (
        summary_with(project, f"--{name}-max-rows=all", extra=", max_dataset_rows=1")["rows"] == 4
    )
    result = project.run(f"--{name}-max-rows", 0)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*the data set has no rows*0*"])


@pytest.mark.parametrize("name", ["holdfast", "ep"])
def test_num_runs(project: EvaluationProject, name: str) -> None:
    reply = summary_with(project, f"--{name}-num-runs", 3, extra=", num_runs=2, samples=2")
    assert (reply["num_runs"], reply["samples"], reply["rows"]) == (3, 6, 24)


@pytest.mark.parametrize("name", ["--holdfast-max-concurrency", "--ep-max-concurrent-rollouts"])
def test_how_many_rollouts_run_at_once(
    project: EvaluationProject, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write(
        """
        import asyncio, os
        running, most, reached = 0, 0, asyncio.Event()

        async def turn(t: Rollout):
            global running, most
            running += 1
            most = max(most, running)
            if running == int(os.environ["AT_ONCE"]):
                reached.set()
            await asyncio.wait_for(reached.wait(), 60)
            await asyncio.sleep(0.02)
            running -= 1

        @evaluation_test(dataset=ROWS, rollout_processor=turn)
        def test_it(row):
            return float(most)
        """
    )
    monkeypatch.setenv("AT_ONCE", "1")
    project.run(name, 1).assert_outcomes(passed=1)
    assert project.only()["agg_score"] == 1.0
    monkeypatch.setenv("AT_ONCE", "4")
    project.run(name, 4, "--holdfast-new").assert_outcomes(passed=1)
    assert project.only()["agg_score"] == 4.0


@pytest.mark.parametrize("name", ["holdfast", "ep"])
def test_how_many_rows_are_judged_at_once(project: EvaluationProject, name: str) -> None:
    project.write(
        """
        import asyncio
        running = 0

        @evaluation_test(dataset=ROWS)
        async def test_it(row):
            global running
            running += 1
            await asyncio.sleep(0.05)
            try:
                return float(running)
            finally:
                running -= 1
        """
    )
    project.run(f"--{name}-max-concurrent-evaluations", 1).assert_outcomes(passed=1)
    assert project.only()["agg_score"] == 1.0


@pytest.mark.parametrize("name", ["holdfast", "ep"])
def test_thresholds(project: EvaluationProject, name: str) -> None:
    project.write(ANY.format(extra=", passed_threshold=9"))
    project.run(f"--{name}-success-threshold", 1.5).assert_outcomes(passed=1)
    assert project.only()["threshold"] == {
        "success": 1.5,
        "standard_error": None,
        "clustered_standard_error": None,
    }
    project.run(f"--{name}-success-threshold", 0).assert_outcomes(passed=1)
    bounds = [f"--{name}-success-threshold=1", f"--{name}-se-threshold", 0.01]
    project.run(*bounds).assert_outcomes(passed=1)
    result = project.run(*bounds, "--holdfast-clustered-se-threshold", 0.01)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*clustered standard error*is above the 0.01 that is allowed*"])
    project.run(f"--{name}-se-threshold", 3).assert_outcomes(failed=1)
    assert project.only()["threshold"] == {
        "success": 9.0,
        "standard_error": 3.0,
        "clustered_standard_error": None,
    }


@pytest.mark.parametrize("name", ["holdfast", "ep"])
def test_completion_params(project: EvaluationProject, name: str) -> None:
    project.write(
        """
        @evaluation_test(dataset=ROWS[:1], completion_params={"max_tokens": 5, "temperature": 1})
        def test_it(row):
            asked = row.input_metadata.completion_params
            return Score(asked["max_tokens"], metrics={"heat": asked["temperature"]})
        """
    )
    project.run(f"--{name}-input-param", "temperature=0").assert_outcomes(passed=1)
    row = project.only()
    assert (row["agg_score"], row["metrics_agg"]["heat"]["mean"]) == (5.0, 0.0)
    (project.folder / "params.json").write_text('{"max_tokens": 7}')
    project.run(f"--{name}-input-param=@params.json").assert_outcomes(passed=1)
    assert project.only()["agg_score"] == 7.0
    arguments = [f"--{name}-completion-params", '{"max_tokens": 2, "temperature": 0.5}']
    arguments += [f"--{name}-completion-params", '{"max_tokens": 3, "temperature": 0.5}']
    result = project.run(*arguments, "-v")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        ["*test_it?max_tokens=2? PASSED*", "*test_it?max_tokens=3? PASSED*"]
    )
    assert [outcome["runs"][0]["agg_score"] for outcome in project.outcomes()] == [2.0, 3.0]
    assert [call.max_tokens for call in project.engine.calls()] == [5, 7, 2, 3]


@pytest.mark.parametrize("name", ["holdfast", "ep"])
def test_reasoning_effort(project: EvaluationProject, name: str) -> None:
    project.write(
        """
        @evaluation_test(dataset=ROWS[:1])
        def test_it(row):
            return row.input_metadata.completion_params["reasoning_effort"] == "low"
        """
    )
    with FakeEngine(dialect="chat") as engine:
        arguments = ["--holdfast-policy", engine.url, f"--{name}-reasoning-effort", "low"]
        project.run(*arguments, policy=False).assert_outcomes(passed=1)
    assert project.only()["agg_score"] == 1.0


@pytest.mark.parametrize("name", ["holdfast", "ep"])
def test_rows_from_a_file(project: EvaluationProject, name: str) -> None:
    lines = [{"prompt": f"line {n}", "ground_truth": 8} for n in range(3)]
    (project.folder / "other.jsonl").write_text("\n".join(map(json.dumps, lines)))
    reply = summary_with(project, f"--{name}-jsonl-path", "other.jsonl")
    assert (reply["rows"], reply["agg_score"]) == (3, 8.0)


@pytest.mark.parametrize("name", ["holdfast", "ep"])
def test_nothing_is_generated(project: EvaluationProject, name: str) -> None:
    project.write(
        """
        SAID = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]

        @evaluation_test(dataset=[{"messages": SAID}])
        def test_it(row):
            return row.last_assistant_message().content == "ho"
        """
    )
    arguments = [f"--{name}-no-op-rollout-processor", "--ep-no-upload"]
    project.run(*arguments, policy=False).assert_outcomes(passed=1)
    assert project.only()["agg_score"] == 1.0
    assert project.engine.stats().requests == 0
    project.run().assert_outcomes(passed=1)
    assert project.only()["agg_score"] == 0.0, "the answer of an earlier run is left out"


@pytest.mark.parametrize("name", ["holdfast", "ep"])
def test_finished_rows_are_written(project: EvaluationProject, name: str) -> None:
    summary_with(project, f"--{name}-output-dir", "rows")
    lines = (project.folder / "rows" / "test_it.test_it.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["evaluation_result"]["score"] for row in rows] == [0.0, 1.0, 2.0, 3.0]


def test_each_run_is_written_as_a_page_with_the_texts_of_its_tokens(
    project: EvaluationProject,
) -> None:
    reply = summary_with(project, "--holdfast-report", "pages")
    (page,) = (project.folder / "pages").iterdir()
    text = page.read_text()
    assert page.suffix == ".html"
    assert str(reply["run"]) in text
    assert 'id="t3"' in text, "the engine's tokenizer is at hand"


def test_an_effort_that_the_model_has_no_words_for_is_refused_before_any_row(
    project: EvaluationProject,
) -> None:
    project.write(ANY.format(extra=""))
    result = project.run("--holdfast-reasoning-effort", "high")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*reasoning_effort cannot be followed*leave it out*"])
    assert project.engine.stats().requests == 0


@pytest.mark.parametrize("name", ["--holdfast-summary", "--ep-summary-json"])
def test_the_summary_has_a_place(project: EvaluationProject, name: str) -> None:
    project.write(ANY.format(extra=""))
    project.run(name, "deep/er.json").assert_outcomes(passed=1)
    data = json.loads((project.folder / "deep" / "er.json").read_text())
    assert data["evaluations"][0]["runs"][0]["agg_score"] == 1.5


@pytest.mark.parametrize("name", ["holdfast", "ep"])
def test_scores_are_told_as_soon_as_they_are_known(project: EvaluationProject, name: str) -> None:
    project.write(ANY.format(extra=""))
    result = project.run(f"--{name}-print-summary", "-q")
    result.stdout.fnmatch_lines(["holdfast: test_it.test_it: 1.5000*", "*= evaluations =*"])


def test_the_journal_has_a_place(project: EvaluationProject) -> None:
    project.write(ANY.format(extra=""))
    project.run("--holdfast-journal", "kept/here.db").assert_outcomes(passed=1)
    assert (project.folder / "kept" / "here.db").is_file()
    assert not (project.folder / ".holdfast").exists()
    project.run("--holdfast-journal", "memory:").assert_outcomes(passed=1)
    assert project.engine.stats().requests == 8
    result = project.run("--holdfast-journal", "kept")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*--holdfast-journal kept is a folder; name a file*"])


@pytest.mark.parametrize(
    ("arguments", "passes"),
    [
        ([], False),
        (["--holdfast-fail-on-permanent-failure"], False),
        (["--holdfast-no-fail-on-permanent-failure"], True),
        (["--ep-fail-on-permanent-failure=false"], True),
        (["--ep-fail-on-permanent-failure", "true"], False),
        (["--ep-fail-on-max-retry", "false"], True),
        (["--ep-fail-on-max-retry", "true"], False),
    ],
)
def test_a_row_that_failed_for_good_fails_the_test_or_not(
    project: EvaluationProject, arguments: list[str], passes: bool
) -> None:
    project.write(
        """
        @evaluation_test(dataset=ROWS, rollout_processor=NoOpRolloutProcessor())
        def test_it(row):
            return 1 / row.ground_truth
        """
    )
    project.run(*arguments).assert_outcomes(**{"passed" if passes else "failed": 1})
    assert project.only()["failed"] == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--holdfast-max-rows", "-1"], "--holdfast-max-rows"),
        (["--ep-max-rows", "some"], "--ep-max-rows"),
        (["--holdfast-num-runs", "0"], "--holdfast-num-runs"),
        (["--ep-max-concurrent-rollouts", "0"], "--ep-max-concurrent-rollouts"),
        (["--holdfast-max-concurrent-evaluations", "x"], "max-concurrent-evaluations"),
        (["--holdfast-max-retry", "-1"], "--holdfast-max-retry"),
        (["--ep-max-retry", "many"], "--ep-max-retry"),
        (["--ep-fail-on-max-retry", "maybe"], "--ep-fail-on-max-retry"),
        (["--holdfast-success-threshold", "nan"], "--holdfast-success-threshold"),
        (["--ep-se-threshold", "-0.1"], "--ep-se-threshold"),
        (["--holdfast-completion-params", "[1]"], "--holdfast-completion-params"),
        (["--ep-completion-params", "{"], "--ep-completion-params"),
        (["--holdfast-input-param", "temperature"], "--holdfast-input-param"),
        (["--holdfast-input-param=@nowhere.json"], "--holdfast-input-param"),
        (["--ep-jsonl-path", "nowhere.jsonl"], "--ep-jsonl-path"),
        (["--holdfast-reasoning-effort", ""], "--holdfast-reasoning-effort"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(
    project: EvaluationProject, arguments: list[str], named: str
) -> None:
    project.write("def test_plain(): pass", head="")
    result = project.run(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert named in result.stderr.str()


def test_a_parameter_that_nobody_knows_is_refused_by_name(project: EvaluationProject) -> None:
    project.write(ANY.format(extra=""))
    result = project.run("--holdfast-input-param", "temprature=0")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*unknown completion parameter 'temprature'*"])
    assert project.engine.stats().requests == 0


class _Parser:
    """As much of pytest's parser as the flags need."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def getgroup(self, name: str, description: str) -> "_Parser":
        return self

    def addoption(self, *names: str, **options: object) -> None:
        self.names += names


def test_the_other_plugins_own_flags_are_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(name: str) -> ModuleSpec | None:
        return ModuleSpec(name, None) if name == "eval_protocol" else None

    alone, beside = _Parser(), _Parser()
    flags.register(alone)  # type: ignore[arg-type]
    monkeypatch.setattr(flags, "find_spec", find_spec)
    flags.register(beside)  # type: ignore[arg-type]
    assert beside.names
    assert all(name.startswith("--holdfast-") for name in beside.names)
    theirs = {name for name in alone.names if name.startswith("--ep-")}
    assert {"--ep-max-retry", "--ep-no-upload", "--ep-se-threshold"} < theirs
    assert len(theirs) == 18


def test_every_sample_is_written(project: EvaluationProject) -> None:
    project.write(
        """
        @evaluation_test(dataset=ROWS, samples=2, num_runs=2)
        def test_it(row):
            return 1.0
        """
    )
    project.run("--holdfast-output-dir", "out").assert_outcomes(passed=1)
    lines = (project.folder / "out" / "test_it.test_it.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["input_metadata"]["row_id"] for row in rows] == [
        f"r{task}" for task in range(4) for _ in range(4)
    ]
    assert len({row["execution_metadata"]["rollout_id"] for row in rows}) == 16
    assert all(row["evaluation_result"]["score"] == 1.0 for row in rows)


EVAL_PROTOCOL_PLUGIN = """
def pytest_addoption(parser):
    group = parser.getgroup("eval-protocol")
    for name in (
        *("max-rows", "num-runs", "max-concurrent-rollouts", "max-concurrent-evaluations"),
        *("summary-json", "reasoning-effort", "max-retry", "success-threshold", "se-threshold"),
        *("jsonl-path", "remote-rollout-processor-base-url", "output-dir"),
    ):
        group.addoption(f"--ep-{name}", action="store", default=None)
    group.addoption("--ep-input-param", action="append", default=None)
    group.addoption("--ep-completion-params", action="append", default=[])
    choices = ["true", "false"]
    group.addoption("--ep-fail-on-max-retry", action="store", default="true", choices=choices)
    for name in ("print-summary", "no-upload", "no-op-rollout-processor"):
        group.addoption(f"--ep-{name}", action="store_true", default=False)
"""
"""The flags as eval-protocol 0.3.33 registers them. `make interop` runs the real ones."""


@pytest.fixture
def beside(project: EvaluationProject, monkeypatch: pytest.MonkeyPatch) -> EvaluationProject:
    """A folder in whose sessions eval-protocol's plugin registers its flags."""
    (project.folder / "conftest.py").write_text(EVAL_PROTOCOL_PLUGIN)
    monkeypatch.setattr(flags, "find_spec", lambda name: ModuleSpec(name, None))
    return project


def test_flags_that_eval_protocols_plugin_registered_work(beside: EvaluationProject) -> None:
    reply = summary_with(beside, "--ep-max-rows", 2, "--ep-num-runs=3", "--ep-no-upload")
    assert (reply["num_runs"], reply["samples"], reply["rows"]) == (3, 3, 6)
    assert summary_with(beside, "--ep-max-rows=all", extra=", max_dataset_rows=1")["rows"] == 4
    bounds: Any = summary_with(beside, "--ep-se-threshold", 0.1, "--ep-success-threshold=1")[
        "threshold"
    ]
    assert (bounds["success"], bounds["standard_error"]) == (1.0, 0.1)
    arguments = [
        "--ep-completion-params",
        '{"temperature": 0.5}',
        "--ep-input-param",
        "max_tokens=7",
    ]
    summary_with(
        beside, *arguments, "--ep-output-dir", "rows", "--ep-print-summary", "--ep-max-retry", 0
    )
    (rows,) = (beside.folder / "rows").glob("*.jsonl")
    params = json.loads(rows.read_text().splitlines()[0])["input_metadata"]["completion_params"]
    assert (params["temperature"], params["max_tokens"]) == (0.5, 7)


@pytest.mark.parametrize(("flag", "value"), [("success-threshold", 2), ("max-rows", 0)])
def test_a_bound_of_eval_protocols_plugin_can_fail_a_test(
    beside: EvaluationProject, flag: str, value: float
) -> None:
    beside.write(ANY.format(extra=""))
    beside.run(f"--ep-{flag}", value).assert_outcomes(failed=1)


def test_our_own_spelling_goes_before_its_twin_even_as_0(beside: EvaluationProject) -> None:
    reply = summary_with(beside, "--ep-max-rows", 1, "--holdfast-max-rows", 3)
    assert reply["rows"] == 3
    beside.run("--ep-max-rows", 1, "--holdfast-max-rows", 0).assert_outcomes(failed=1)


def test_rows_that_failed_may_be_forgiven_by_eval_protocols_flag(beside: EvaluationProject) -> None:
    beside.write(
        """
        @evaluation_test(dataset=ROWS, rollout_processor=NoOpRolloutProcessor())
        def test_it(row):
            return 1 / row.ground_truth
        """
    )
    beside.run().assert_outcomes(failed=1)
    beside.run("--ep-fail-on-max-retry", "false").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--ep-max-rows", "some"], "*--ep-max-rows wants a whole number, not 'some'"),
        (["--ep-success-threshold", "high"], "*--ep-success-threshold wants a number, not 'high'"),
        (["--ep-reasoning-effort", ""], "*--ep-reasoning-effort wants a word"),
        (
            ["--ep-remote-rollout-processor-base-url=http://127.0.0.1:1"],
            "*--ep-remote-rollout-processor-base-url means nothing to Holdfast's evaluations",
        ),
    ],
)
def test_a_flag_of_eval_protocols_plugin_that_cannot_work_is_refused(
    beside: EvaluationProject, arguments: list[str], line: str
) -> None:
    beside.write(ANY.format(extra=""))
    result = beside.run(*arguments)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([line])
    assert beside.engine.stats().requests == 0


def test_tests_of_eval_protocols_own_keep_its_flags_and_its_summary(
    beside: EvaluationProject,
) -> None:
    beside.write("def test_plain(): pass", head="")
    arguments = ["-p", "no:cacheprovider", "--ep-summary-json", "theirs.json"]
    arguments += ["--ep-remote-rollout-processor-base-url", "http://127.0.0.1:1"]
    result = beside.pytester.runpytest_inprocess(*arguments, plugins=[plugin])
    result.assert_outcomes(passed=1)
    assert not (beside.folder / "theirs.json").exists()


def test_the_summary_goes_where_eval_protocols_flag_says(beside: EvaluationProject) -> None:
    beside.write(ANY.format(extra=""))
    arguments = ["-p", "no:cacheprovider", "--ep-summary-json", "both.json"]
    arguments += ["--holdfast-policy", beside.engine.url]
    beside.pytester.runpytest_inprocess(*arguments, plugins=[plugin]).assert_outcomes(passed=1)
    (outcome,) = json.loads((beside.folder / "both.json").read_text())["evaluations"]
    assert outcome["test"] == "test_it.py::test_it"
