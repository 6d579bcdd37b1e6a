"""A judge in an evaluation: one of a module, called for many rows at once, as it is documented."""

from collections.abc import Iterator

import pytest

from holdfast.records.usage import judge_usage
from holdfast.testing import FakeEngine
from support.evaluation.evaluation_project import EvaluationProject

GOOD = '{"reason": "it is right", "score": 8}'
JUDGED = """
import holdfast

judge = holdfast.Judge("Is the answer right?", policy="URL")

@evaluation_test(dataset=ROWS, passed_threshold=0.75)
async def test_it(row):
    async with judge:
        return await judge(row)

def test_afterwards():
    assert judge.usage.completion_tokens > 0
"""


@pytest.fixture
def judging() -> Iterator[FakeEngine]:
    """Slow enough that many rows are with the judge at once."""
    with FakeEngine(replies=[GOOD], delay=0.3) as engine:
        yield engine


def write(project: EvaluationProject, engine: FakeEngine, source: str = JUDGED) -> None:
    project.write(source.replace("URL", engine.url))


def questions(engine: FakeEngine) -> int:
    return sum(name == "judge" for name, _ in engine.requests())


def test_rows_are_judged_at_once_each_by_one_question(
    project: EvaluationProject, judging: FakeEngine
) -> None:
    write(project, judging)
    project.run().assert_outcomes(passed=2)
    row = project.only()
    assert (row["agg_score"], row["scored"], row["failed"]) == (pytest.approx(0.8), 4, 0)
    assert questions(judging) == 4
    for history in project.histories("test_it.test_it").values():
        assert history.scored is not None
        assert history.scored.reasons == {"score": "it is right"}
        assert not history.scoring_failures


def test_tokens_count_also_where_a_function_makes_a_number_of_the_verdict(
    project: EvaluationProject, judging: FakeEngine
) -> None:
    plain = JUDGED.replace("return await judge(row)", "return (await judge(row)).reward / 2")
    write(project, judging, plain.replace("0.75", "0.3"))
    project.run().assert_outcomes(passed=2)
    assert project.only()["agg_score"] == pytest.approx(0.4)
    for history in project.histories("test_it.test_it").values():
        assert history.scored is not None
        assert judge_usage(history.scored.details)["fake"].completion_tokens > 0


def test_what_is_judged_is_not_judged_again_by_the_same_command(
    project: EvaluationProject, judging: FakeEngine
) -> None:
    write(project, judging, JUDGED.partition("def test_afterwards")[0])
    project.run().assert_outcomes(passed=1)
    project.run().assert_outcomes(passed=1)
    assert project.only()["scored"] == 4
    assert questions(judging) == 4


def test_a_judge_is_called_without_a_block_beside_one_that_has_one(
    project: EvaluationProject, judging: FakeEngine
) -> None:
    beside = """
    if row.ground_truth % 2:
        return await judge(row)
    async with judge:"""
    write(project, judging, JUDGED.replace("\n    async with judge:", beside))
    project.run().assert_outcomes(passed=2)
    assert project.only()["scored"] == 4
    assert questions(judging) == 4


def test_a_row_that_the_judge_cannot_judge_has_no_score_and_is_in_no_mean(
    project: EvaluationProject,
) -> None:
    with FakeEngine(replies=['{"reason": "it is empty", "score": null}']) as engine:
        write(project, engine)
        result = project.run()
    assert project.only()["agg_score"] is None
    result.stdout.fnmatch_lines(["*no row was scored*"])


def test_a_verdict_that_could_not_be_read_is_asked_for_again_with_retry_failed(
    project: EvaluationProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = JUDGED.replace('"URL"', 'os.environ["JUDGE_AT"]').partition("def test_afterwards")[0]
    with FakeEngine(replies=["nonsense"]) as engine:
        monkeypatch.setenv("JUDGE_AT", engine.url)
        write(project, engine, f"import os\n{source}")
        project.run()
        assert project.only()["agg_score"] is None
    with FakeEngine(replies=[GOOD]) as engine:
        monkeypatch.setenv("JUDGE_AT", engine.url)
        project.run()
        assert questions(engine) == 0
        project.run("--holdfast-retry-failed").assert_outcomes(passed=1)
        assert questions(engine) == 4
        assert project.only()["scored"] == 4


COMPARED = """
import holdfast

judge = holdfast.Judge("Which answer is better?", policy="URL", compare=True)

@evaluation_test(dataset=ROWS, mode="groupwise", samples=2)
async def test_it(rows):
    for row in rows:  # Equal answers would be compared as one.
        row.messages[-1].content += row.execution_metadata.rollout_id
    async with judge:
        return await judge(rows)
"""


def test_samples_of_a_row_are_compared_in_one_question(project: EvaluationProject) -> None:
    answer = '{"A": {"reason": "better", "score": 9}, "B": {"reason": "worse", "score": 3}}'
    with FakeEngine(replies=[answer], delay=0.2) as engine:
        write(project, engine, COMPARED)
        project.run().assert_outcomes(passed=1)
        assert questions(engine) == 4
    assert project.only()["agg_score"] == pytest.approx(0.6)


@pytest.mark.parametrize(
    "source",
    [
        JUDGED,
        """
import holdfast

@pytest.fixture
def judge():
    return holdfast.Judge("Is the answer right?", policy="URL")

@evaluation_test(dataset=ROWS)
async def test_it(row, judge):
    return await judge(row)
""",
        """
import holdfast

class TestIt:
    def setup_method(self):
        self.judge = holdfast.Judge("Is the answer right?", policy="URL")

    @evaluation_test(dataset=ROWS, mode="all")
    async def test_it(self, rows):
        return [await self.judge(row) for row in rows]
""",
    ],
    ids=["of the module", "a fixture", "of the class"],
)
def test_a_judge_that_is_down_is_found_before_anything_is_sampled(
    project: EvaluationProject, source: str
) -> None:
    with FakeEngine() as gone:
        address = gone.url
    project.write(source.replace("URL", address))
    result = project.run("-k", "test_it")
    result.stdout.fnmatch_lines([f"EndpointDown: the judge: the policy at {address} does *"])
    assert project.engine.stats().tokens == 0
    assert not list(project.runs()), "a run that nobody can judge is not made"


def test_what_is_judged_needs_no_judge(project: EvaluationProject) -> None:
    with FakeEngine(replies=[GOOD]) as engine:
        write(project, engine, JUDGED.partition("def test_afterwards")[0])
        project.run().assert_outcomes(passed=1)
    project.run().assert_outcomes(passed=1)


# --- a judge whose engine goes away while rows are rolled out

KILLS = """
import os, signal
import holdfast

judge = holdfast.Judge("Is the answer right?", policy="URL")

async def solve(t):
    t.add(*t.task.messages)
    await t.generate()
    if os.environ.get("VICTIM"):
        os.kill(int(os.environ.pop("VICTIM")), signal.SIGKILL)

@evaluation_test(dataset=ROWS[:1], rollout_processor=solve, scorer_timeout=0.5 MODE)
async def test_it(ARGUMENT):
    try:
        async with judge:
            CALL
    except holdfast.HoldfastError as error:
        raise RuntimeError("my own words") from error
"""
POINTWISE = KILLS.replace("MODE", "").replace("ARGUMENT", "row")
POINTWISE = POINTWISE.replace("CALL", "return await judge(row)")
ALL = KILLS.replace("MODE", ", mode='all'").replace("ARGUMENT", "rows")
ALL = ALL.replace("CALL", "return [await judge(row) for row in rows]")


@pytest.mark.parametrize("source", [POINTWISE, ALL], ids=["pointwise", "all"])
def test_one_that_stays_down_blames_no_row_and_the_same_command_only_judges(
    project: EvaluationProject, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeEngine(replies=[GOOD]) as engine:
        write(project, engine, source)
        monkeypatch.setenv("VICTIM", str(engine.pid))
        result = project.run("--holdfast-patience", "0")
        result.stdout.fnmatch_lines(
            [f"WaitTimedOut: the judge: {engine.url} has been down *the same command to go on"]
        )
        result.stdout.no_fnmatch_line("*correct the function*")
        engine.kill()
        engine.start()
        sampled = project.engine.stats().tokens
        project.run("--holdfast-patience", "0").assert_outcomes(passed=1)
        assert project.engine.stats().tokens == sampled
        assert questions(engine) == 1
    assert project.only()["failed"] == 0


# --- a judge that changed


QUESTIONS = """
import os, pathlib
import holdfast

def ask():
    return judge

def make():
    return holdfast.Judge(
        pathlib.Path("rubric.txt").read_text(),
        policy=os.environ["JUDGE_AT"],
        model=os.environ.get("JUDGE_MODEL"),
    )

judge = make()

@evaluation_test(dataset=ROWS[:int(os.environ.get("NUMBER", 4))])
async def test_it(row):
    return await judge(row)
"""
OF_A_FUNCTION = QUESTIONS.replace("await judge(row)", "await ask()(row)")
BY_THE_FUNCTION = QUESTIONS.replace("await judge(row)", "await make()(row)")
BY_THE_FUNCTION = BY_THE_FUNCTION.replace("judge = make()", "")
A_FIXTURE = QUESTIONS.replace("judge = make()", "@pytest.fixture\ndef judge():\n    return make()")
A_FIXTURE = A_FIXTURE.replace("test_it(row)", "test_it(row, judge)")
OF_THE_CLASS = (
    QUESTIONS.partition("judge = make()")[0]
    + """
class TestIt:
    def setup_method(self):
        self.judge = make()

    @evaluation_test(dataset=ROWS[:int(os.environ.get("NUMBER", 4))])
    async def test_it(self, row):
        return await self.judge(row)
"""
)


class TestAChangedJudge:
    @pytest.fixture(autouse=True)
    def engine(
        self, project: EvaluationProject, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[FakeEngine]:
        with FakeEngine(replies=[GOOD]) as engine:
            monkeypatch.setenv("JUDGE_AT", engine.url)
            (project.folder / "rubric.txt").write_text("Is the answer right?")
            yield engine

    @pytest.mark.parametrize(
        "source",
        [QUESTIONS, OF_A_FUNCTION, BY_THE_FUNCTION, A_FIXTURE, OF_THE_CLASS],
        ids=["of the module", "of a function", "by the function", "a fixture", "of the class"],
    )
    def test_another_rubric_from_the_same_file_scores_all_rows_anew(
        self,
        project: EvaluationProject,
        engine: FakeEngine,
        source: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        project.write(source)
        monkeypatch.setenv("NUMBER", "2")
        project.run().assert_outcomes(passed=1)
        assert questions(engine) == 2
        sampled = project.engine.stats().tokens
        (project.folder / "rubric.txt").write_text("Is the answer polite?")
        project.run().assert_outcomes(passed=1)
        assert questions(engine) == 4
        assert project.engine.stats().tokens == sampled

    @pytest.mark.parametrize("source", [QUESTIONS, BY_THE_FUNCTION], ids=["module", "function"])
    def test_rows_that_are_appended_are_in_no_mean_with_verdicts_of_another_judge(
        self,
        project: EvaluationProject,
        engine: FakeEngine,
        source: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        project.write(source)
        monkeypatch.setenv("NUMBER", "2")
        project.run().assert_outcomes(passed=1)
        assert project.only()["agg_score"] == pytest.approx(0.8)
        with FakeEngine(replies=['{"score": 2}']) as other:
            monkeypatch.setenv("JUDGE_AT", other.url)
            (project.folder / "rubric.txt").write_text("Is the answer polite?")
            monkeypatch.setenv("NUMBER", "4")
            project.run().assert_outcomes(passed=1)
            assert questions(other) == 4
        assert project.only()["agg_score"] == pytest.approx(0.2)
        assert len(project.runs()) == 2

    def test_another_model_from_a_variable_scores_all_rows_anew(
        self, project: EvaluationProject, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        project.write(QUESTIONS)
        monkeypatch.setenv("JUDGE_MODEL", "fake")
        project.run().assert_outcomes(passed=1)
        with FakeEngine(replies=[GOOD], model="other") as other:
            monkeypatch.setenv("JUDGE_AT", other.url)
            monkeypatch.setenv("JUDGE_MODEL", "other")
            project.run().assert_outcomes(passed=1)
            assert questions(other) == 4

    def test_another_model_that_only_the_engine_names_scores_all_rows_anew_with_the_next(
        self, project: EvaluationProject, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        project.write(QUESTIONS)
        monkeypatch.setenv("NUMBER", "2")
        project.run().assert_outcomes(passed=1)
        with FakeEngine(replies=[GOOD], model="other") as other:
            monkeypatch.setenv("JUDGE_AT", other.url)
            monkeypatch.setenv("NUMBER", "4")
            project.run().assert_outcomes(passed=1)
            assert questions(other) == 4

    def test_the_same_judge_at_another_address_judges_nothing_again(
        self, project: EvaluationProject, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        project.write(QUESTIONS)
        project.run().assert_outcomes(passed=1)
        with FakeEngine(replies=[GOOD]) as moved:
            monkeypatch.setenv("JUDGE_AT", moved.url)
            project.run().assert_outcomes(passed=1)
            assert questions(moved) == 0
