"""Two tests are two runs, and what judges a row is what its score is recorded with."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from course import Course

from builders import spec
from holdfast.evaluation.data.dataset import datasets_of
from holdfast.evaluation.definition.completion_params import ids_of, setting_of
from holdfast.evaluation.running.resume import MAX_NAME, limited, open_recorded
from holdfast.evaluation.stats.results import Results, RowResult
from holdfast.evaluation.stats.verdict import Threshold, verdict_of
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.records.run import Run, RunSpec


def scores(course: Course) -> dict[str, tuple[str, float]]:
    """The run and the score of each test."""
    return {
        one["test"].partition("::")[2]: (one["runs"][0]["run"], one["runs"][0]["agg_score"])
        for one in course.outcomes()
    }


# --- one test, one run


def test_tests_that_share_a_function_share_no_run(course: Course) -> None:
    course.write(
        """
        class Base:
            @evaluation_test(dataset=ROWS)
            def test_it(self, row):
                return self.score

        class TestLow(Base):
            score = 0.25

        class TestHigh(Base):
            score = 0.75

        def made(score):
            @evaluation_test(dataset=ROWS)
            def judge(row):
                return score
            return judge

        test_first, test_second = made(0.1), made(0.9)
        """
    )
    course.run().assert_outcomes(passed=4)
    assert scores(course) == {
        "TestLow::test_it": ("test_it.TestLow.test_it", 0.25),
        "TestHigh::test_it": ("test_it.TestHigh.test_it", 0.75),
        "test_first": ("test_it.test_first", 0.1),
        "test_second": ("test_it.test_second", 0.9),
    }


def test_parameters_that_differ_in_a_slash_are_two_runs(course: Course) -> None:
    course.write(
        """
        @pytest.mark.parametrize("name", ["a/b", "a_b"])
        @evaluation_test(dataset=ROWS)
        def test_it(row, name):
            return float("/" in name)
        """
    )
    course.run().assert_outcomes(passed=2)
    found = scores(course)
    assert found["test_it[a/b]"][1] == 1.0
    assert found["test_it[a_b]"] == ("test_it.test_it[a_b]", 0.0)


def test_a_runs_name_can_be_a_files_name() -> None:
    name = limited("test_" + "日" * 100)
    assert len(name.encode()) <= MAX_NAME < 255
    assert name != limited("test_" + "日" * 101)
    assert limited("short") == "short"


# --- what judges


def test_other_values_of_a_parameter_judge_anew(course: Course) -> None:
    judge = """
    @pytest.fixture(params=[{{"bonus": {bonus}}}])
    def kind(request):
        return object()

    @pytest.mark.parametrize("weights", [{{"right": {right}}}])
    @evaluation_test(dataset=ROWS)
    def test_it(row, weights, kind):
        return weights["right"]
    """
    course.write(judge.format(right=0.25, bonus=1))
    course.run().assert_outcomes(passed=1)
    course.write(judge.format(right=0.75, bonus=1))
    result = course.run()
    result.stdout.fnmatch_lines(["*the scorer changed; what was rolled out is scored anew*"])
    assert course.only()["agg_score"] == 0.75
    assert course.engine.stats().requests == 4


def test_what_an_heir_says_in_another_file_is_part_of_the_scorer(course: Course) -> None:
    course.write(
        """
        class Judge:
            @evaluation_test(dataset=ROWS)
            def test_it(self, row):
                return self.score
        """,
        name="judge_of_all.py",
    )
    heir = "from judge_of_all import Judge\nclass TestHeir(Judge):\n    score = {}\n"
    (course.folder / "test_heir.py").write_text(heir.format(0.25))
    course.run().assert_outcomes(passed=1)
    (course.folder / "test_heir.py").write_text(heir.format(0.75))
    course.run().assert_outcomes(passed=1)
    assert course.only()["agg_score"] == 0.75
    assert course.engine.stats().requests == 4


def test_a_set_is_the_same_set_in_another_process(
    course: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    course.write(
        """
        @evaluation_test(dataset=ROWS, evaluation_test_kwargs=[{"words": set("abcdefgh")}])
        def test_it(row, words):
            return 1.0
        """
    )
    for seed in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        told, _ = course.apart().communicate(timeout=60)
    assert "was finished already" in told, told


def test_settings_that_look_alike_are_other_company(course: Course) -> None:
    judge = """
    LONG = "x" * 60

    @evaluation_test(
        dataset=ROWS, mode="groupwise", completion_params=[{{"stop": LONG}}, {{"stop": {stop}}}]
    )
    def test_it(rows):
        return [float({stop} in row.input_metadata.completion_params["stop"]) for row in rows]
    """
    course.write(judge.format(stop="LONG + 'a'"))
    course.run().assert_outcomes(passed=1)
    course.write(judge.format(stop="LONG + 'b'"))
    result = course.run()
    result.assert_outcomes(passed=1)
    # The first setting's rows are judged in their new company, and are not rolled out again.
    result.stdout.fnmatch_lines(["*the scorer changed; what was rolled out is scored anew*"])
    assert course.engine.stats().requests == 12


def test_what_a_scorer_does_to_its_row_is_not_seen_by_the_next(course: Course) -> None:
    course.write(
        """
        @evaluation_test(
            dataset=ROWS, samples=2, completion_params={"stop": ["never said"]},
            passed_threshold=0.5, max_concurrent_evaluations=1,
        )
        def test_it(row):
            stop = row.input_metadata.completion_params["stop"]
            threshold = row.eval_metadata.passed_threshold
            untouched = stop == ["never said"] and threshold.success == 0.5
            stop.append("spoilt")
            threshold.success = 9
            return float(untouched)
        """
    )
    course.run().assert_outcomes(passed=1)
    assert course.only()["agg_score"] == 1.0


def test_a_metric_that_is_no_number_fails_its_row(course: Course) -> None:
    course.write(
        """
        @evaluation_test(dataset=ROWS, scorer_tries=1)
        def test_it(row):
            metric = MetricResult(score=float("nan" if row.ground_truth == 1 else 1), reason="")
            return EvaluateResult(score=1.0, metrics={"length": metric})
        """
    )
    result = course.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*returned nan as its metric 'length'*"])
    assert course.only()["failed"] == 1
    assert course.only()["metrics_agg"]["length"]["mean"] == 1.0
    assert "NaN" not in (course.folder / "summary.json").read_text()


# --- what is written


def test_every_sample_is_written(course: Course) -> None:
    course.write(
        """
        @evaluation_test(dataset=ROWS, samples=2, num_runs=2)
        def test_it(row):
            return 1.0
        """
    )
    course.run("--holdfast-output-dir", "out").assert_outcomes(passed=1)
    lines = (course.folder / "out" / "test_it.test_it.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["input_metadata"]["row_id"] for row in rows] == [
        f"r{task}" for task in range(4) for _ in range(4)
    ]
    assert len({row["execution_metadata"]["rollout_id"] for row in rows}) == 16
    assert all(row["evaluation_result"]["score"] == 1.0 for row in rows)


def test_a_password_in_an_address_is_shown_nowhere() -> None:
    given = "http://user:hunter2hunter2@127.0.0.1:8000"
    settings = [setting_of({"base_url": given}), setting_of({"base_url": "http://127.0.0.1:9"})]
    assert settings[0].base_url == given
    assert "hunter2" not in f"{settings!r} {ids_of(settings)} {settings[0].params}"


# --- data sets


def _breaks() -> Iterator[dict[str, str]]:
    yield {"prompt": "the only row that is there"}
    raise OSError("the disk is gone")


def _endless() -> Iterator[dict[str, str]]:
    while True:
        yield {"prompt": "again"}


def test_a_generator_that_broke_is_broken_for_every_setting() -> None:
    (dataset,) = datasets_of(input_dataset=_breaks())
    for _ in range(2):
        with pytest.raises(OSError, match="the disk is gone"):
            asyncio.run(dataset.rows())


def test_a_generator_without_an_end_may_be_limited(course: Course) -> None:
    course.write(
        """
        def endless():
            while True:
                yield {"prompt": "again"}

        @evaluation_test(
            dataset=endless(), max_dataset_rows=3, rollout_processor=NoOpRolloutProcessor()
        )
        def test_it(row):
            return 1.0
        """
    )
    course.run().assert_outcomes(passed=1)
    assert course.only()["rows"] == 3
    (dataset,) = datasets_of(input_dataset=_endless(), max_dataset_rows=2)
    assert len(asyncio.run(dataset.rows())) == 2


# --- the edge of a threshold


def test_a_score_that_equals_its_threshold_reaches_it() -> None:
    results = Results("run", tuple(RowResult(f"t{n}", 0, score=0.02) for n in range(29)))
    verdict = verdict_of(results, threshold=Threshold(0.02))
    assert verdict.passed, verdict.reason
    assert verdict_of(results, threshold=Threshold(0.0201)).passed is False


# --- at the same moment


class _Beaten(SqliteJournal):
    """Another session creates the run right after this one has looked for it."""

    rival: RunSpec | None = None

    async def find_run(self, name: str) -> Run | None:
        found = await super().find_run(name)
        if self.rival is not None:
            rival, self.rival = self.rival, None
            await self.create_run(rival, [])
        return found


@pytest.mark.parametrize(("new", "name"), [(False, "run"), (True, "run-2")])
def test_sessions_that_create_a_run_at_the_same_moment_agree(
    tmp_path: Path, new: bool, name: str
) -> None:
    async def opened() -> str:
        journal = _Beaten(tmp_path / "j.db")
        journal.rival = spec("run")
        try:
            return (
                await open_recorded(journal, spec("run"), [], new=new, resume=False)
            ).run.spec.name
        finally:
            await journal.close()

    assert asyncio.run(opened()) == name
