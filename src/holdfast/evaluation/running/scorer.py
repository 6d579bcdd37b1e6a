"""The user's function as the engine's scorer.

The function is given a row (or rows) of its own, made anew for each call: whatever it changes,
nothing recorded changes with it. What it returns becomes a `Score`; an `EvaluateResult` is kept
whole. What it raises fails its own rows only, with the traceback; the engine sees to that. Only
what speaks of the whole test, such as `pytest.skip()`, goes up to pytest.
"""

import functools
import inspect
import sys
import unittest
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel

from holdfast.engine.scoring.scorer import Score, Scorer, group_scorer
from holdfast.evaluation.rows.eval_protocol import adopt_models
from holdfast.evaluation.rows.result import EvaluateResult
from holdfast.evaluation.rows.row import EvaluationRow
from holdfast.records.errors import ScoringStopped, UsageError
from holdfast.records.view import TrajectoryView
from holdfast.rollout.episodes.environment import as_number

RowOf = Callable[[TrajectoryView], EvaluationRow]
Log = Callable[[EvaluationRow], object]
ACCEPTED = (
    "a row with its evaluation_result, an EvaluateResult, a number, a bool, a Score, or a dict "
    "with a 'score'"
)


def scorer_of(
    function: Callable[..., object],
    *,
    row_of: RowOf,
    arguments: Mapping[str, object],
    several: bool,
    log: Log | None = None,
) -> Scorer:
    """`arguments` are handed to the function beside `row` or, where it takes several, `rows`. `log`
    is called with every row as the function left it."""
    if log is not None:
        function = logging(function, log, several=several)
    name = getattr(function, "__name__", type(function).__name__)
    make = _group if several else _point
    scorer: Callable[..., Any] = make(function, row_of, dict(arguments), name)
    scorer.__name__ = name
    return Scorer(group_scorer(scorer) if several else scorer)


def logging(function: Callable[..., Any], log: Log, *, several: bool) -> Callable[..., Any]:
    """The function, and then the log, with what was judged."""

    def log_rows(found: object, rows: Sequence[EvaluationRow]) -> object:
        listed = found if several and isinstance(found, Sequence) else [found]
        for row, result in zip(rows, listed, strict=False):
            log(_with_result(row, result, getattr(function, "__name__", "the evaluation")))
        return found

    def rows_of(arguments: Mapping[str, Any]) -> Sequence[EvaluationRow]:
        return arguments["rows"] if several else [arguments["row"]]

    if inspect.iscoroutinefunction(function):

        async def later(**arguments: Any) -> object:
            return log_rows(await function(**arguments), rows_of(arguments))

        return functools.wraps(function)(later)

    def at_once(**arguments: Any) -> object:
        return log_rows(function(**arguments), rows_of(arguments))

    return functools.wraps(function)(at_once)


def _with_result(row: EvaluationRow, found: object, name: str) -> EvaluationRow:
    if isinstance(found, EvaluationRow):
        return found
    score = score_of(found, name)
    row.evaluation_result = _result_in(found, name) or EvaluateResult(score=score.reward or 0.0)
    return row


def _point(
    function: Callable[..., Any], row_of: RowOf, arguments: dict[str, object], name: str
) -> Callable[[TrajectoryView], object]:
    if inspect.iscoroutinefunction(function):

        async def score_async(view: TrajectoryView) -> Score:
            with _judging():
                return score_of(await function(row=row_of(view), **arguments), name)

        return score_async

    def score(view: TrajectoryView) -> "Score | Awaitable[Score]":
        with _judging():
            found = function(row=row_of(view), **arguments)
        # A function that only returns a coroutine: the engine awaits what this one returns.
        if isinstance(found, Awaitable) and not isinstance(found, EvaluationRow):
            return _later(found, name)
        return score_of(found, name)

    return score


async def _later(found: Awaitable[object], name: str) -> Score:
    with _judging():
        return score_of(await found, name)


@contextmanager
def _judging() -> Iterator[None]:
    """`pytest.skip()`, `xfail()` and `exit()` are about the test; `fail()` is about the row."""
    is_met = adopt_models()
    try:
        yield
    except BaseException as error:
        if isinstance(error, (unittest.SkipTest, *_raised_by("skip", "xfail", "exit"))):
            raise ScoringStopped(error) from error
        if isinstance(error, _raised_by("fail")):
            raise AssertionError(str(error)) from error
        raise
    if not is_met and adopt_models():
        raise UsageError(
            "eval_protocol was first imported while rows were judged, so that its functions may "
            "have taken this row for a foreign one: import it at the top of the evaluation's file"
        )


def _raised_by(*names: str) -> tuple[type[BaseException], ...]:
    """What pytest's functions of these names raise; nothing where it is not there."""
    module = sys.modules.get("pytest")
    return tuple(getattr(module, name).Exception for name in names) if module else ()


def _group(
    function: Callable[..., Any], row_of: RowOf, arguments: dict[str, object], name: str
) -> Callable[[Sequence[TrajectoryView]], object]:
    if inspect.iscoroutinefunction(function):

        async def score_async(views: Sequence[TrajectoryView]) -> list[Score]:
            with _judging():
                found = await function(rows=[row_of(view) for view in views], **arguments)
            return scores_of(found, len(views), name)

        return score_async

    def score(views: Sequence[TrajectoryView]) -> "list[Score] | Awaitable[list[Score]]":
        with _judging():
            found = function(rows=[row_of(view) for view in views], **arguments)
        if isinstance(found, Awaitable):
            return _all_later(found, len(views), name)
        return scores_of(found, len(views), name)

    return score


async def _all_later(found: Awaitable[object], count: int, name: str) -> list[Score]:
    with _judging():
        return scores_of(await found, count, name)


def scores_of(found: object, count: int, name: str) -> list[Score]:
    """One for each row, in their order."""
    if not isinstance(found, Sequence) or isinstance(found, str) or len(found) != count:
        what = f"{len(found)} of them" if isinstance(found, Sequence) else repr(found)[:200]
        raise TypeError(f"{name} wants to return a list of {count}, one for each row, not {what}")
    return [score_of(result, name) for result in found]


def score_of(found: object, name: str) -> Score:
    """What an evaluation may return, as the engine records it."""
    if isinstance(found, Score):
        return found
    result = _result_in(found, name)
    if result is not None:
        return _of_result(result)
    number = as_number(found)
    if number is None:
        raise TypeError(f"{name} returned {found!r:.200}; it wants to return {ACCEPTED}")
    return Score(number)


def _result_in(found: Any, name: str) -> EvaluateResult | None:
    """Also of eval-protocol's own rows and results, which have the same fields."""
    if isinstance(found, EvaluateResult):
        return found
    if hasattr(found, "evaluation_result"):
        if found.evaluation_result is None:
            raise TypeError(f"{name} returned a row without its evaluation_result; set that")
        return _result_in(found.evaluation_result, name)
    if isinstance(found, Mapping):
        return EvaluateResult.model_validate(_with_metrics(found))
    if isinstance(found, BaseModel) and "score" in type(found).model_fields:
        return EvaluateResult.model_validate(found.model_dump(mode="json", exclude_unset=True))
    return None


def _with_metrics(found: Mapping[Any, Any]) -> dict[str, object]:
    """A dict may give a metric as a plain number."""
    described = {str(key): value for key, value in found.items()}
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
    """The result, whole; one that is not valid has no reward."""
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
