"""Wraps the user's function as the engine's scorer.

Each call gets new rows, so a function that changes its rows does not change any record. The
function's result becomes a `Score`, which keeps all of an `EvaluateResult`. If the function raises
an exception, the engine fails only the rows of the call, and records the traceback. Only an
exception about the whole test, such as that of `pytest.skip()`, is passed up to pytest.

A function may return its rows in any order. A returned row stands for the given row with the same
`rollout_id`. A row that the function made itself has no `rollout_id` and stands for the given row
with its `row_id`. The same holds for a dict or an EvaluateResult with one of these ids, or with
`id`, which is the name of the `row_id` in a data set. Results without an id (numbers, other dicts)
belong to the rows at the same positions in the list that the function got, in the order in which
the function left that list.
"""

import inspect
import sys
import unittest
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from typing import Any

from msgspec.structs import asdict
from pydantic import BaseModel, ValidationError

from holdfast.engine.scoring.scorer import (
    NotAScore,
    Score,
    Scorer,
    by_position,
    check_named,
    group_scorer,
    read_metric,
    read_reward,
    shown,
)
from holdfast.evaluation.definition.definition import Definition, Mode
from holdfast.evaluation.definition.validate import called_by, never_returns
from holdfast.evaluation.eval_protocol.class_checks import match_models
from holdfast.evaluation.rows.completion_params import Setting
from holdfast.evaluation.rows.convert import row_of
from holdfast.evaluation.rows.result import EvaluateResult
from holdfast.evaluation.rows.row import EvalMetadata, EvaluationRow, EvaluationThreshold
from holdfast.evaluation.stats.verdict import Threshold
from holdfast.records.encoding.declared import function_name
from holdfast.records.errors import ScoringStopped, UsageError
from holdfast.records.run import RunSpec
from holdfast.records.view import TrajectoryView
from holdfast.rollout.episodes.environment import as_number

REMEDY = "return each of the rows that it was given once, in any order"
RowOf = Callable[[TrajectoryView], EvaluationRow]
Log = Callable[[EvaluationRow], object]
_ROW_IDS = ("row_id", "id")
"""The names under which a dict or a result gives the `row_id` of its row."""
ACCEPTED = (
    "a row with its evaluation_result, an EvaluateResult, a number, a bool, a Score, a dict with "
    "a 'score', or None (no valid score)"
)


def scorer_of(
    function: Callable[..., object],
    *,
    row_of: RowOf,
    arguments: Mapping[str, object],
    several: bool,
    log: Log | None = None,
) -> Scorer:
    """Makes the scorer. `arguments` are passed to the function in addition to `row`, or to `rows`
    if it takes `several`. `log` is called with every row as the function left it."""
    called = called_by(function)
    gives_nothing = never_returns(function)

    def rows_to_judge(seen: Any) -> JudgedRows:
        return JudgedRows([row_of(view) for view in (seen if several else [seen])])

    def judge(judged: JudgedRows) -> Any:
        named = {"rows": judged.handed} if several else {"row": judged.rows[0]}
        return function(**named, **arguments)

    def read(verdict: object, judged: JudgedRows) -> Any:
        if several:
            results = judged.in_order(verdict, called)
        else:
            judged.check_own(verdict, called)
            results = [verdict]
        scores = [score_of(result, called, gives_nothing=gives_nothing) for result in results]
        if log is not None:
            for row, result, score in zip(judged.rows, results, scores, strict=True):
                log(_with_result(row, result, score, called))
        return scores if several else scores[0]

    is_async = inspect.iscoroutinefunction(function)
    scorer = _judged(rows_to_judge, judge, read, is_async=is_async)
    scorer.__name__ = function_name(function)
    return Scorer(group_scorer(scorer) if several else scorer, called=called)


def _with_result(row: EvaluationRow, returned: object, score: Score, called: str) -> EvaluationRow:
    """Returns the row as the function left it, with its result."""
    if isinstance(returned, EvaluationRow):
        return returned
    row.evaluation_result = _result_in(returned, called) or EvaluateResult(
        score=score.reward or 0.0
    )
    return row


def _judged(
    rows_to_judge: "Callable[[Any], JudgedRows]",
    judge: "Callable[[JudgedRows], Any]",
    read: "Callable[[object, JudgedRows], object]",
    *,
    is_async: bool,
) -> Callable[[Any], Any]:
    """Returns a scorer of one or several trajectories. `rows_to_judge` makes rows of the
    trajectories, `judge` calls the user's function with these rows, and `read` reads the function's
    result."""

    async def score_async(seen: Any) -> object:
        with _judging():
            judged = rows_to_judge(seen)
            return read(await judge(judged), judged)

    async def score_later(awaitable: Awaitable[object], judged: JudgedRows) -> object:
        with _judging():
            return read(await awaitable, judged)

    def score(seen: Any) -> object:
        with _judging():
            judged = rows_to_judge(seen)
            verdict = judge(judged)
        # The function is not async itself, but returned a coroutine. The engine awaits the result
        # of this function.
        if isinstance(verdict, Awaitable) and not isinstance(verdict, EvaluationRow):
            return score_later(verdict, judged)
        return read(verdict, judged)

    return score_async if is_async else score


@contextmanager
def _judging() -> Iterator[None]:
    """Passes `pytest.skip()`, `xfail()` and `exit()` on, because they concern the test. `fail()`
    fails only the row."""
    is_met = match_models()
    try:
        yield
    except BaseException as error:
        if isinstance(error, (unittest.SkipTest, *_raised_by("skip", "xfail", "exit"))):
            raise ScoringStopped(error) from error
        if isinstance(error, _raised_by("fail")):
            raise AssertionError(str(error)) from error
        raise
    if not is_met and match_models():
        raise UsageError(
            "eval_protocol was first imported while rows were judged, so that its functions may "
            "have taken this row for a foreign one: import it at the top of the evaluation's file"
        )


def _raised_by(*names: str) -> tuple[type[BaseException], ...]:
    """Returns the exceptions of pytest's functions with these names, or () without pytest."""
    module = sys.modules.get("pytest")
    return tuple(getattr(module, name).Exception for name in names) if module else ()


def score_of(score: object, called: str, *, gives_nothing: bool = False) -> Score:
    """Converts the return value of an evaluation to a `Score`. `called` names the evaluation in
    errors. `gives_nothing` says that the function has no `return` with a value, so that None is an
    error."""
    if isinstance(score, Score):
        return score
    if score is None:
        if gives_nothing:
            raise NotAScore(f"{called} has no `return` with a value; return {ACCEPTED}")
        return Score(None)
    result = _result_in(score, called)
    if result is not None:
        return _of_result(result)
    number = as_number(score)
    if number is None:
        raise NotAScore(f"{called} returned {shown(score)}; return {ACCEPTED}")
    return Score(number)


def _result_in(evaluate_result: Any, called: str) -> EvaluateResult | None:
    """Returns the `EvaluateResult` in the value, or None. Rows and results of eval-protocol's own
    classes are accepted, because they have the same fields."""
    if isinstance(evaluate_result, EvaluateResult):
        return evaluate_result
    if hasattr(evaluate_result, "evaluation_result"):
        if evaluate_result.evaluation_result is None:
            raise NotAScore(
                f"{called} returned a row without its evaluation_result; set row.evaluation_result "
                "= EvaluateResult(score=…) before"
            )
        return _result_in(evaluate_result.evaluation_result, called)
    if isinstance(evaluate_result, Mapping):
        return _validated(_with_metrics(evaluate_result, called), called)
    if isinstance(evaluate_result, BaseModel) and "score" in type(evaluate_result).model_fields:
        return _validated(evaluate_result.model_dump(mode="json", exclude_unset=True), called)
    return None


def _validated(fields: Mapping[str, object], called: str) -> EvaluateResult:
    """Validates a result. Numbers are read as for a run's scorers, so text that spells a number is
    refused."""
    read_reward(fields.get("score"), called, accepted=ACCEPTED)
    metrics = fields.get("metrics")
    for name, metric in metrics.items() if isinstance(metrics, Mapping) else ():
        if not isinstance(metric, BaseModel):
            read_metric(name, metric, called)
    try:
        return EvaluateResult.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise NotAScore(
            f"{called} returned a result whose {where} is {shown(first['input'])}: {first['msg']}"
        ) from None


def _with_metrics(mapping: Mapping[Any, Any], called: str) -> dict[str, object]:
    """Converts a dict to the fields of an `EvaluateResult`. A metric in the dict may be a plain
    number."""
    described = {str(key): value for key, value in mapping.items()}
    check_named(described, called, accepted=ACCEPTED)
    if "reward" in described:
        described["score"] = described.pop("reward")
    if described["score"] is None:
        described |= {"score": 0.0, "is_score_valid": False}
    metrics = described.get("metrics")
    if isinstance(metrics, Mapping):
        described["metrics"] = {
            str(name): metric
            if (number := as_number(metric)) is None
            else {"score": number, "reason": ""}
            for name, metric in metrics.items()
        }
    return described


def _of_result(result: EvaluateResult) -> Score:
    """Returns the result as a score with all details. A result that is not valid has no reward."""
    reasons = {name: metric.reason for name, metric in result.metrics.items() if metric.reason}
    if result.reason:
        reasons = {"reason": result.reason, **reasons}
    return Score(
        reward=result.score if result.is_score_valid else None,
        metrics={
            name: metric.score for name, metric in result.metrics.items() if metric.is_score_valid
        },
        reasons=reasons,
        details=result.model_dump(mode="json", exclude_unset=True),
    )


# --- the row that the function gets


def scorer_row(
    view: TrajectoryView, spec: RunSpec, setting: Setting, *, mode: Mode, evaluation: EvalMetadata
) -> EvaluationRow:
    """Returns a new row of the trajectory, which the scorer may change freely."""
    row = row_of(_unscored(view), spec)
    metadata = row.input_metadata
    metadata.completion_params = {**(metadata.completion_params or {}), **deepcopy(setting.params)}
    metadata.session_data = {**(metadata.session_data or {}), "mode": mode.value}
    index = view.key.sample // max(1, spec.samples // evaluation.num_runs)
    row.execution_metadata.run_id = f"{spec.name}/{index}"
    row.eval_metadata = evaluation.model_copy(deep=True)
    return row


def eval_metadata_of(
    definition: Definition, *, num_runs: int, threshold: Threshold | None
) -> EvalMetadata:
    """Returns the evaluation's metadata. `num_runs` and `threshold` are the session's, which may
    differ from the decorator's."""
    # Not validated, because eval-protocol refuses thresholds above 1.
    passed = None if threshold is None else EvaluationThreshold.model_construct(**asdict(threshold))
    return EvalMetadata(
        name=definition.function.__name__,
        description=definition.function.__doc__,
        num_runs=num_runs,
        aggregation_method=definition.aggregation.value,
        passed_threshold=passed,
    )


def _unscored(view: TrajectoryView) -> TrajectoryView:
    """Returns the trajectory without an earlier score, because the scorer might take that score for
    its own."""
    if view.history.scored is None:
        return view
    history = copy(view.history)
    history.scored = None
    return TrajectoryView(view.key, view.task, history)


# --- which of the given rows each returned row is


class JudgedRows:
    """The rows of one call, under the ids that they had before the function could change them."""

    def __init__(self, rows: list[EvaluationRow]):
        self.rows = rows
        self.handed = list(rows)
        """The list that the function gets. The function may sort the list."""
        self._rollout_ids = [str(row.execution_metadata.rollout_id) for row in rows]
        self._by_rollout = {name: [place] for place, name in enumerate(self._rollout_ids)}
        self._by_row: dict[str | None, list[int]] = {}
        for place, row in enumerate(rows):
            self._by_row.setdefault(row.input_metadata.row_id, []).append(place)

    def check_own(self, result: object, called: str) -> None:
        """Raises `NotAScore` if the function was given one row and returned another rollout's
        row."""
        if _is_row(result) and _rollout_id(result) not in (None, *self._rollout_ids):
            raise NotAScore(
                f"{called} returned the row {_name(result)} for the row {self._rollout_ids[0]}; "
                "return the row that it was given"
            )

    def in_order(self, results: object, called: str) -> Sequence[object]:
        """Returns the results in the order of the given rows, one for each row. Raises `NotAScore`,
        with the row's name, if a row is missing, was returned twice or was not given."""
        if not isinstance(results, Sequence) or not any(map(_is_row, results)):
            return by_position(results, self.rows, self.handed, called)
        by_place: dict[int, object] = {}
        for row in results:
            place = self._place(row, called)
            if place in by_place:
                name = self._rollout_ids[place]
                raise NotAScore(f"{called} returned the row {name} twice; {REMEDY}")
            by_place[place] = row
        for place, name in enumerate(self._rollout_ids):
            if place not in by_place:
                raise NotAScore(f"{called} did not return the row {name}; {REMEDY}")
        return [by_place[place] for place in range(len(self.rows))]

    def _place(self, row: object, called: str) -> int:
        if not _is_row(row):
            raise NotAScore(f"{called} returned {shown(row)} in a list of rows; {REMEDY}")
        rollout_id, row_id = _rollout_id(row), _row_id(row)
        if rollout_id is None:
            places = self._by_row.get(row_id, [])
        else:
            places = self._by_rollout.get(rollout_id, [])
        if len(places) > 1:
            raise NotAScore(
                f"{called} returned a row without a rollout_id, and {len(places)} rows have its "
                f"row_id {row_id!r}; {REMEDY}"
            )
        if not places:
            raise NotAScore(
                f"{called} returned the row {_name(row)}, which it was not given; {REMEDY}"
            )
        return places[0]


def _is_row(result: object) -> bool:
    """Returns whether the result names the row to which it belongs."""
    return _has_metadata(result) or not _ids(result).keys().isdisjoint(("rollout_id", *_ROW_IDS))


def _has_metadata(result: object) -> bool:
    """Returns whether the result is a row, of Holdfast's or eval-protocol's class."""
    return hasattr(result, "evaluation_result")


def _ids(result: object) -> Mapping[Any, Any]:
    """Returns the fields in which a result that is not a row has its ids."""
    if isinstance(result, BaseModel):
        return result.model_extra or {}
    return result if isinstance(result, Mapping) else {}


def _name(row: object) -> str:
    return str(_rollout_id(row) or _row_id(row) or "without an id")


def _rollout_id(row: Any) -> str | None:
    """Returns the rollout's id in a row or a result. Returns None for a row that the function made,
    because its id is only a default."""
    if not _has_metadata(row):
        return _ids(row).get("rollout_id")
    metadata = row.execution_metadata
    return metadata.rollout_id if "rollout_id" in metadata.model_fields_set else None


def _row_id(row: Any) -> str | None:
    if _has_metadata(row):
        row_id: str | None = row.input_metadata.row_id
        return row_id
    ids = _ids(row)
    return next((str(ids[name]) for name in _ROW_IDS if name in ids), None)
