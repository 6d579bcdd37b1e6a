"""The same command goes on; what changed decides whether rows are scored or rolled out again."""

import asyncio
from pathlib import Path

import pytest

from holdfast.evaluation.running.resume import MAX_NAME, limited, open_recorded
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.records.run import Run, RunSpec
from holdfast.testing import Fault, FaultKind
from support.evaluation.evaluation_project import EvaluationProject
from support.records import spec

SCORER = """
async def turn(t: Rollout):
    t.add(*t.task.messages)
    await t.generate()

@evaluation_test(dataset=ROWS, rollout_processor=turn, passed_threshold={threshold})
def test_it(row):
    return {score}
"""


def test_a_finished_run_gives_its_verdict_from_the_journal_without_an_engine(
    project: EvaluationProject,
) -> None:
    project.write(
        """
        @evaluation_test(dataset=ROWS, completion_params={"model": "fake"}, passed_threshold=0.5)
        def test_it(row):
            return row.ground_truth / 3
        """
    )
    project.run().assert_outcomes(passed=1)
    first = project.only()
    dead = "http://127.0.0.1:9"
    result = project.run("--holdfast-policy", dead, policy=False)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*test_it.test_it was finished already*from the journal*"])
    again = project.only()
    assert again["agg_score"] == first["agg_score"] == 0.5
    assert project.engine.stats().requests == 4
    assert list(project.runs()) == ["test_it.test_it"]


def test_another_scorer_scores_the_same_rollouts_anew(project: EvaluationProject) -> None:
    project.write(SCORER.format(score="0.25", threshold=0))
    project.run().assert_outcomes(passed=1)
    project.write(SCORER.format(score="0.75", threshold=0.5))
    result = project.run()
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*the scorer changed; what was rolled out is scored anew*"])
    assert project.only()["agg_score"] == 0.75
    assert list(project.runs()) == ["test_it.test_it"]
    assert project.engine.stats().requests == 4


def test_another_helper_of_the_scorer_scores_the_same_rollouts_anew(
    project: EvaluationProject,
) -> None:
    helper = "HALF = 0.5\ndef helper(row):\n    return HALF * {}\n"
    source = SCORER.format(score="helper(row)", threshold=0)
    project.write(helper.format("1") + source)
    project.run().assert_outcomes(passed=1)
    project.write(helper.format("2") + source)
    project.run().assert_outcomes(passed=1)
    assert project.only()["agg_score"] == 1.0
    assert list(project.runs()) == ["test_it.test_it"]
    assert project.engine.stats().requests == 4


MODEL = ("--holdfast-input-param", "model=fake")
GONE = ("--holdfast-policy", "http://127.0.0.1:9")


@pytest.mark.parametrize("mode", ["pointwise", "all"])
def test_another_scorer_needs_no_engine_where_the_model_is_known(
    project: EvaluationProject, mode: str
) -> None:
    several = SCORER.replace("(row)", "(rows)").replace("return {score}", "return [{score}] * 4")
    source = SCORER if mode == "pointwise" else several.replace("dataset", "mode='all', dataset")
    project.write(source.format(score="0.25", threshold=0))
    project.run().assert_outcomes(passed=1)
    project.write(source.format(score="0.75", threshold=0.5))
    unknown = project.run(*GONE, policy=False)
    unknown.assert_outcomes(failed=1)
    unknown.stdout.fnmatch_lines(
        ["*127.0.0.1:9 does not answer*--holdfast-input-param model=fake*"]
    )
    project.run(*GONE, *MODEL, policy=False).assert_outcomes(passed=1)
    assert project.only()["agg_score"] == 0.75
    assert project.engine.stats().requests == 4
    # What is to be sampled needs it, as before.
    more = project.run(*GONE, *MODEL, "--holdfast-num-runs", "2", policy=False)
    more.stdout.fnmatch_lines(["*127.0.0.1:9 does not answer*or correct the address"])


def test_another_threshold_is_no_other_scorer(project: EvaluationProject) -> None:
    project.write(SCORER.format(score="0.25", threshold=0))
    project.run().assert_outcomes(passed=1)
    project.write("# A comment.\n" + SCORER.format(score="0.25", threshold=0.5))
    result = project.run()
    result.assert_outcomes(failed=1)
    assert "scored anew" not in result.stdout.str()
    result.stdout.fnmatch_lines(["*was finished already*"])


def test_rows_that_a_scorer_failed_are_scored_by_its_successor(project: EvaluationProject) -> None:
    project.write(SCORER.format(score="1 / row.ground_truth", threshold=0))
    project.run().assert_outcomes(failed=1)
    assert project.only()["failed"] == 1
    project.write(SCORER.format(score="1.0", threshold=0))
    project.run().assert_outcomes(passed=1)
    assert project.only()["scored"] == 4
    assert project.engine.stats().requests == 4, "what was rolled out is replayed"


def test_an_earlier_scorers_word_is_not_taken_for_the_next_ones(project: EvaluationProject) -> None:
    judge = """
    @evaluation_test(dataset=ROWS)
    def test_it(row):
        {body}
        return row
    """
    project.write(judge.format(body="row.evaluation_result = EvaluateResult(score=1.0)"))
    project.run().assert_outcomes(passed=1)
    project.write(judge.format(body="assert row.evaluation_result is None"))
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*returned a row without its evaluation_result*"])


def test_other_rows_or_another_rollout_begin_another_run(project: EvaluationProject) -> None:
    project.write(SCORER.format(score="1.0", threshold=0))
    project.run().assert_outcomes(passed=1)
    project.write(SCORER.replace("ROWS", "ROWS[:3]").format(score="1.0", threshold=0))
    result = project.run()
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*test_it.test_it-2 is a new run*tasks: 1 removed (r3)*"])
    project.write(
        SCORER.replace("await t", "t.limit(turns=2); await t").format(score=1, threshold=0)
    )
    project.run().assert_outcomes(passed=1)
    assert list(project.runs()) == ["test_it.test_it", "test_it.test_it-2", "test_it.test_it-3"]
    project.write(SCORER.format(score="1.0", threshold=0))
    result = project.run()
    result.stdout.fnmatch_lines(["*test_it.test_it was finished already*"])
    assert project.engine.stats().requests == 4 + 4, "three rows were there"


def test_resume_insists_and_new_begins_another(project: EvaluationProject) -> None:
    project.write(SCORER.format(score="1.0", threshold=0))
    project.run("--holdfast-resume").assert_outcomes(passed=1)
    project.run("--holdfast-new").assert_outcomes(passed=1)
    assert list(project.runs()) == ["test_it.test_it", "test_it.test_it-2"]
    result = project.run("--holdfast-resume", "--holdfast-max-rows", 2)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*--holdfast-resume: run 'test_it.test_it-2' is recorded differently*", "*2 removed*"]
    )
    result = project.run("--holdfast-resume", "--holdfast-new")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*--holdfast-resume and --holdfast-new exclude each other*"])


def test_failed_rows_stay_failed_until_they_are_to_be_retried(project: EvaluationProject) -> None:
    project.engine.set_faults(Fault(FaultKind.MISSING_IDS, matching="/r1/", times=0))
    project.write(SCORER.format(score="1.0", threshold=0))
    project.run("--holdfast-max-retry", 0).assert_outcomes(failed=1)
    requests = project.engine.stats().requests
    project.engine.set_faults()
    project.run().assert_outcomes(failed=1)
    assert project.engine.stats().requests == requests
    project.run("--holdfast-retry-failed").assert_outcomes(passed=1)
    assert project.engine.stats().requests == requests + 1
    assert project.only()["scored"] == 4


def test_a_late_scorer_that_failed_is_asked_again_and_nothing_is_rolled_out(
    project: EvaluationProject,
) -> None:
    late = """
    @evaluation_test(dataset=ROWS, mode="all", scorer_tries=1)
    def test_it(rows):
        {body}
        return [1.0] * len(rows)
    """
    project.write(late.format(body="raise RuntimeError('the judge is ill')"))
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*no row was scored*", "*RuntimeError: the judge is ill*"])
    assert project.run("--holdfast-retry-failed").ret == 1
    project.write(late.format(body="pass"))
    project.run().assert_outcomes(passed=1)
    assert project.only()["scored"] == 4
    assert project.engine.stats().requests == 4


def test_other_company_in_a_group_is_another_judgement(project: EvaluationProject) -> None:
    group = """
    @evaluation_test(dataset=ROWS, mode="groupwise", completion_params={params})
    def test_it(rows):
        return [float(len(rows))] * len(rows)
    """
    first, two, three = ({"temperature": heat} for heat in (0.1, 0.2, 0.3))
    project.write(group.format(params=[first, two]))
    project.run().assert_outcomes(passed=1)
    project.write(group.format(params=[first, two, three]))
    project.run().assert_outcomes(passed=1)
    (outcome,) = project.outcomes()
    assert [run["agg_score"] for run in outcome["runs"]] == [3.0, 3.0, 3.0]
    assert project.engine.stats().requests == 12


APART = """
from texts import PROMPT
from judges import score

async def turn(t: Rollout):
    t.add(PROMPT, *t.task.messages)
    await t.generate()

@evaluation_test(dataset=ROWS, rollout_processor=turn, passed_threshold=0)
def test_it(row):
    return score(row)
"""


def test_a_changed_prompt_in_another_file_begins_another_run_and_is_named(
    project: EvaluationProject,
) -> None:
    (project.folder / "texts.py").write_text("PROMPT = 'be brief'\n")
    (project.folder / "judges.py").write_text("def score(row): return 0.25\n")
    project.write(APART)
    project.run().assert_outcomes(passed=1)
    (project.folder / "texts.py").write_text("# So far.\nPROMPT = 'be brief'\n")
    project.run().stdout.fnmatch_lines(["*was finished already*"])
    (project.folder / "texts.py").write_text("PROMPT = 'be verbose'\n")
    result = project.run()
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*test_it.test_it-2 is a new run*rollout*changed: PROMPT*"])
    assert project.engine.stats().requests == 8


def test_a_changed_judge_in_another_file_scores_anew_and_rolls_nothing_out(
    project: EvaluationProject,
) -> None:
    (project.folder / "texts.py").write_text("PROMPT = 'be brief'\n")
    (project.folder / "judges.py").write_text("def score(row): return 0.25\n")
    project.write(APART)
    project.run().assert_outcomes(passed=1)
    (project.folder / "judges.py").write_text("def score(row): return 0.75\n")
    result = project.run()
    result.stdout.fnmatch_lines(["*the scorer changed; what was rolled out is scored anew*"])
    assert project.only()["agg_score"] == 0.75
    assert project.engine.stats().requests == 4


def scores(project: EvaluationProject) -> dict[str, tuple[str, float]]:
    """The run and the score of each test."""
    return {
        outcome["test"].partition("::")[2]: (
            outcome["runs"][0]["run"],
            outcome["runs"][0]["agg_score"],
        )
        for outcome in project.outcomes()
    }


def test_tests_that_share_a_function_share_no_run(project: EvaluationProject) -> None:
    project.write(
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
    project.run().assert_outcomes(passed=4)
    assert scores(project) == {
        "TestLow::test_it": ("test_it.TestLow.test_it", 0.25),
        "TestHigh::test_it": ("test_it.TestHigh.test_it", 0.75),
        "test_first": ("test_it.test_first", 0.1),
        "test_second": ("test_it.test_second", 0.9),
    }


def test_parameters_that_differ_in_a_slash_are_two_runs(project: EvaluationProject) -> None:
    project.write(
        """
        @pytest.mark.parametrize("name", ["a/b", "a_b"])
        @evaluation_test(dataset=ROWS)
        def test_it(row, name):
            return float("/" in name)
        """
    )
    project.run().assert_outcomes(passed=2)
    fields = scores(project)
    assert fields["test_it[a/b]"][1] == 1.0
    assert fields["test_it[a_b]"] == ("test_it.test_it[a_b]", 0.0)


def test_a_runs_name_can_be_a_files_name() -> None:
    name = limited("test_" + "日" * 100)
    assert len(name.encode()) <= MAX_NAME < 255
    assert name != limited("test_" + "日" * 101)
    assert limited("short") == "short"


def test_other_values_of_a_parameter_judge_anew(project: EvaluationProject) -> None:
    judge = """
    @pytest.fixture(params=[{{"bonus": {bonus}}}])
    def kind(request):
        return object()

    @pytest.mark.parametrize("weights", [{{"right": {right}}}])
    @evaluation_test(dataset=ROWS)
    def test_it(row, weights, kind):
        return weights["right"]
    """
    project.write(judge.format(right=0.25, bonus=1))
    project.run().assert_outcomes(passed=1)
    project.write(judge.format(right=0.75, bonus=1))
    result = project.run()
    result.stdout.fnmatch_lines(["*the scorer changed; what was rolled out is scored anew*"])
    assert project.only()["agg_score"] == 0.75
    assert project.engine.stats().requests == 4


def test_what_an_heir_says_in_another_file_is_part_of_the_scorer(
    project: EvaluationProject,
) -> None:
    project.write(
        """
        class Judge:
            @evaluation_test(dataset=ROWS)
            def test_it(self, row):
                return self.score
        """,
        name="judge_of_all.py",
    )
    heir = "from judge_of_all import Judge\nclass TestHeir(Judge):\n    score = {}\n"
    (project.folder / "test_heir.py").write_text(heir.format(0.25))
    project.run().assert_outcomes(passed=1)
    (project.folder / "test_heir.py").write_text(heir.format(0.75))
    project.run().assert_outcomes(passed=1)
    assert project.only()["agg_score"] == 0.75
    assert project.engine.stats().requests == 4


def test_a_set_is_the_same_set_in_another_process(
    project: EvaluationProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write(
        """
        @evaluation_test(dataset=ROWS, evaluation_test_kwargs=[{"words": set("abcdefgh")}])
        def test_it(row, words):
            return 1.0
        """
    )
    for seed in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        message, _ = project.apart().communicate(timeout=60)
    assert "was finished already" in message, message


def test_settings_that_look_alike_are_other_company(project: EvaluationProject) -> None:
    judge = """
    LONG = "x" * 60

    @evaluation_test(
        dataset=ROWS, mode="groupwise", completion_params=[{{"stop": LONG}}, {{"stop": {stop}}}]
    )
    def test_it(rows):
        return [float({stop} in row.input_metadata.completion_params["stop"]) for row in rows]
    """
    project.write(judge.format(stop="LONG + 'a'"))
    project.run().assert_outcomes(passed=1)
    project.write(judge.format(stop="LONG + 'b'"))
    result = project.run()
    result.assert_outcomes(passed=1)
    # The first setting's rows are judged in their new company, and are not rolled out again.
    result.stdout.fnmatch_lines(["*the scorer changed; what was rolled out is scored anew*"])
    assert project.engine.stats().requests == 12


class _Beaten(SqliteJournal):
    """Another session creates the run right after this one has looked for it."""

    rival: RunSpec | None = None

    async def find_run(self, name: str) -> Run | None:
        stored_run = await super().find_run(name)
        if self.rival is not None:
            rival, self.rival = self.rival, None
            await self.create_run(rival, [])
        return stored_run


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


def test_what_an_earlier_test_changed_makes_no_other_run_of_a_later_one(
    project: EvaluationProject,
) -> None:
    project.write("""
    seen = {}

    async def turn(t: Rollout):
        seen[t.task.id] = len(seen)
        t.add(*t.task.messages)
        await t.generate()

    @evaluation_test(dataset=ROWS, rollout_processor=turn)
    def test_first(row):
        return 1.0

    @evaluation_test(dataset=ROWS, rollout_processor=turn)
    def test_second(row):
        return float(bool(seen) or 1)
    """)
    project.run().assert_outcomes(passed=2)
    project.run().assert_outcomes(passed=2)
    assert project.engine.stats().requests == 8
    assert len(project.runs()) == 2
