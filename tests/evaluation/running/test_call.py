"""An evaluation is also a function: it judges a row, and it runs without pytest."""

import asyncio
import sys
from pathlib import Path

import pytest

from holdfast import Rollout, Score
from holdfast.evaluation import (
    EvaluateResult,
    EvaluationFailed,
    EvaluationRow,
    Message,
    Options,
    evaluation_test,
)
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.records.errors import UsageError
from holdfast.testing import FakeEngine

ROWS = [{"id": f"r{n}", "prompt": f"What is {n}?", "ground_truth": n} for n in range(4)]


@evaluation_test(dataset=ROWS, passed_threshold=2.0)
def judged(row: EvaluationRow) -> EvaluationRow:
    row.evaluation_result = EvaluateResult(score=float(row.ground_truth))
    return row


@evaluation_test(dataset=ROWS, mode="all")
async def judged_together(rows: list[EvaluationRow]) -> list[float]:
    return [len(rows)] * len(rows)


@evaluation_test(dataset=ROWS, completion_params=[{"temperature": 0.1}, {"temperature": 0.2}])
def in_two_settings(row: EvaluationRow, bonus: float) -> Score:
    return Score(bonus + row.input_metadata.completion_params["temperature"])


class Judges:
    @evaluation_test(dataset=ROWS)
    def method(self, row: EvaluationRow) -> float:
        return 1.0


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_POLICY", raising=False)
    return tmp_path


def test_called_with_a_row_it_judges_the_row() -> None:
    row = EvaluationRow(messages=[Message(role="user", content="hi")], ground_truth=3)
    assert judged(row) is row
    assert row.evaluation_result is not None
    assert row.evaluation_result.score == 3.0
    assert judged(row=row) is row
    assert asyncio.run(judged_together([row, row])) == [2, 2]  # type: ignore[arg-type]
    assert Judges().method(row) == 1.0


def test_evaluate_runs_it_all_and_says_what_came_of_it(engine: FakeEngine, place: Path) -> None:
    outcome = judged.evaluate(policy=engine.url, journal=str(place / "here.db"))  # type: ignore[attr-defined]
    assert (outcome.score, outcome.passed) == (1.5, False)
    assert outcome.verdict.scored == 4
    with pytest.raises(EvaluationFailed, match=r"score 1.5 is below the threshold of 2"):
        outcome.check()
    assert outcome.run.endswith("test_call.judged")
    again = judged.evaluate(policy=engine.url, journal=str(place / "here.db"))  # type: ignore[attr-defined]
    assert again.score == 1.5
    assert "was finished already" in again.notes[0]
    assert engine.stats().requests == 4


def test_evaluate_async_runs_in_the_callers_loop_with_the_callers_policy(
    engine: FakeEngine, place: Path
) -> None:
    async def body() -> float | None:
        policy = EnginePolicy(engine.url, engine.model)
        try:
            outcome = await judged_together.evaluate_async(  # type: ignore[attr-defined]
                policy=policy, journal="memory:"
            )
            await policy.check()  # It is the caller's, and still open.
            return outcome.score
        finally:
            await policy.aclose()

    assert asyncio.run(body()) == 4.0


async def test_evaluate_works_in_a_running_loop_as_in_a_notebook(
    engine: FakeEngine, place: Path
) -> None:
    outcome = judged.evaluate(policy=engine.url, journal="memory:")  # type: ignore[attr-defined]
    await asyncio.sleep(0)  # The caller's loop is as it was.
    with pytest.raises(UsageError, match="has no variant 'x'"):
        judged.evaluate(variant="x")  # type: ignore[attr-defined]
    assert (outcome.score) == 1.5


async def test_cancelling_loses_nothing_that_is_durable(engine: FakeEngine, place: Path) -> None:
    held = asyncio.Event()

    async def two_turns(t: Rollout) -> None:
        t.add(*t.task.messages)
        await t.generate()
        if t.task.id == "r3":
            held.set()
            await asyncio.sleep(3600)

    @evaluation_test(dataset=ROWS, rollout_processor=two_turns, max_concurrent_rollouts=1)
    def slow(row: EvaluationRow) -> float:
        return 1.0

    run = slow.evaluate_async  # type: ignore[attr-defined]
    working = asyncio.create_task(run(policy=engine.url, journal="here.db"))
    await held.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert asyncio.all_tasks() == {asyncio.current_task()}
    held = asyncio.Event()
    again = asyncio.create_task(run(policy=engine.url, journal="here.db"))
    await held.wait()
    again.cancel()
    await asyncio.gather(again, return_exceptions=True)
    assert engine.stats().requests == 4, "the turn before the cancellation is replayed"


def test_variants_and_arguments_are_named(engine: FakeEngine, place: Path) -> None:
    run = in_two_settings.evaluate  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match=r"2 variants; name one with variant=: temperature=0\.1"):
        run(policy=engine.url)
    with pytest.raises(UsageError, match="no variant 'hot'"):
        run(policy=engine.url, variant="hot")
    with pytest.raises(UsageError, match="also takes bonus, which pytest fills in"):
        run(policy=engine.url, variant="temperature=0.2")
    outcome = run(
        policy=engine.url,
        variant="temperature=0.2",
        arguments={"bonus": 1.0},
        options=Options(max_rows=2, journal="memory:"),
    )
    assert outcome.score == pytest.approx(1.2)
    assert outcome.verdict.rows == 2


def test_options_are_a_dict_too(engine: FakeEngine, place: Path) -> None:
    run = judged.evaluate  # type: ignore[attr-defined]
    outcome = run(policy=engine.url, options={"max_rows": 1, "journal": "memory:"})
    assert outcome.verdict.rows == 1
    with pytest.raises(UsageError, match="options has no 'max_row'; is 'max_rows' meant"):
        run(policy=engine.url, options={"max_row": 1})
    with pytest.raises(UsageError, match=r"options wants an Options\(…\) or a dict, not 3"):
        run(policy=engine.url, options=3)


def test_a_policy_that_serves_another_model_is_refused(engine: FakeEngine, place: Path) -> None:
    @evaluation_test(dataset=ROWS, completion_params={"model": "other"})
    def wanting(row: EvaluationRow) -> float:
        return 1.0

    with pytest.raises(UsageError, match=r"does not serve model 'other'; it serves: fake"):
        wanting.evaluate(policy=engine.url, journal="memory:")  # type: ignore[attr-defined]


def test_without_the_plugin_the_test_runs_itself(
    engine: FakeEngine, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_POLICY", engine.url)
    with pytest.raises(EvaluationFailed, match="below the threshold"):
        judged()
    assert (place / ".holdfast" / "evaluations.db").is_file()


def test_the_decorated_function_is_still_itself() -> None:
    assert judged.__name__ == "judged"
    assert judged.__module__ == __name__
    assert sys.modules[__name__].judged is judged
