"""What is tried again, and how often: by its cause, or as the evaluation's own rule says."""

import pytest

from holdfast.engine.settings import Settings
from holdfast.evaluation.eval_protocol.retries import (
    BackoffConfig,
    ExceptionHandlerConfig,
    retrying_of,
)
from holdfast.records.errors import EnvironmentBroken, ToolBug, UsageError
from holdfast.records.failure import Cause
from support.evaluation.evaluation_project import EvaluationProject

RAISES = """
from holdfast.evaluation import BackoffConfig, ExceptionHandlerConfig

async def broken(t: Rollout):
    raise {error}

@evaluation_test(dataset=ROWS[:1], rollout_processor=broken{config})
def test_it(row):
    return 1.0
"""
CONFIG = """, exception_handler_config=ExceptionHandlerConfig(
    {listed}backoff_config=BackoffConfig(strategy="constant", base_delay=0.0{rest})
)"""


def config(listed: str = "", **rest: str) -> str:
    text = f"retryable_exceptions={listed}, " if listed else ""
    return CONFIG.format(listed=text, rest="".join(f", {k}={v}" for k, v in rest.items()))


@pytest.mark.parametrize(
    ("error", "attempts", "cause"),
    [
        ("ConnectionError('refused')", 3, Cause.INFRASTRUCTURE),
        ("TimeoutError('late')", 3, Cause.INFRASTRUCTURE),
        ("__import__('httpx').ConnectError('refused')", 3, Cause.INFRASTRUCTURE),
        ("FileNotFoundError('rows.txt')", 2, Cause.CODE),
        ("KeyError('choices')", 2, Cause.CODE),
    ],
)
def test_what_a_rollout_raises_is_tried_again_by_its_cause(
    project: EvaluationProject, error: str, attempts: int, cause: Cause
) -> None:
    project.write(RAISES.format(error=error, config=config(max_tries="2")))
    project.run().assert_outcomes(failed=1)
    failures = project.histories("test_it.test_it")["r0/0"].failures
    assert [failure.cause for failure in failures] == [cause] * attempts
    assert project.only()["failed_by_cause"] == {cause.value: 1}


@pytest.mark.parametrize(
    ("error", "rule", "attempts"),
    [
        ("KeyError('k')", config("{KeyError}", max_tries="4"), 5),
        ("ConnectionError('refused')", config("{KeyError}"), 1),
        ("KeyError('k')", config("set()"), 1),
        ("KeyError('k')", config("ExceptionHandlerConfig().retryable_exceptions | {OSError}"), 2),
        ("OSError('o')", config(giveup_func="lambda error: 'o' in str(error)"), 1),
        ("OSError('x')", config(giveup_func="lambda error: 'o' in str(error)"), 4),
    ],
)
def test_the_evaluations_own_rule_decides(
    project: EvaluationProject, error: str, rule: str, attempts: int
) -> None:
    project.write(RAISES.format(error=error, config=rule))
    project.run().assert_outcomes(failed=1)
    assert len(project.histories("test_it.test_it")["r0/0"].failures) == attempts


def test_a_giveup_func_that_raises_fails_its_row_with_that(project: EvaluationProject) -> None:
    rule = config(giveup_func="lambda error: error.no_such_thing")
    project.write(RAISES.format(error="OSError('the first')", config=rule))
    project.run().assert_outcomes(failed=1)
    (failure,) = project.histories("test_it.test_it")["r0/0"].failures
    assert failure.type == "AttributeError"
    assert "the first" in failure.traceback


def test_tools_go_by_what_they_raised() -> None:
    config = ExceptionHandlerConfig(retryable_exceptions={KeyError})
    rule = retrying_of(config).settings["retry_rule"]
    assert rule is not None
    bug = ToolBug("a bug")
    bug.__cause__ = KeyError("k")
    assert rule(bug) is True
    assert rule(EnvironmentBroken("gone")) is None, "environments go by their cause"


def test_constant_delays_do_not_grow_and_others_grow_by_their_factor() -> None:
    def growth(**backoff: object) -> float | None:
        made = BackoffConfig(**backoff)  # type: ignore[arg-type]
        return retrying_of(ExceptionHandlerConfig(backoff_config=made)).settings["backoff_growth"]

    assert growth(strategy="constant") == 1.0
    assert growth() == Settings().backoff_growth == 2.0
    assert growth(factor=3) == 3.0
    with pytest.raises(UsageError, match="factor"):
        growth(factor=0.5)


def test_a_judge_is_called_again_only_if_it_is_asked_for(project: EvaluationProject) -> None:
    project.write(
        """
        calls = []

        def judge(row):
            calls.append(row.ground_truth)
            if len(calls) == 1:
                raise ConnectionError("the judge's model is away")
            return 1.0

        @evaluation_test(dataset=ROWS[:1])
        def test_once(row):
            return judge(row)

        @evaluation_test(dataset=ROWS[:1], scorer_tries=2)
        def test_twice(row):
            return judge(row)
        """
    )
    project.run("-k", "once").assert_outcomes(failed=1)
    assert len(project.histories("test_it.test_once")["r0/0"].scoring_failures) == 1
    assert project.only()["failed_by_cause"] == {"infrastructure": 1}
    project.run("-k", "twice").assert_outcomes(passed=1)
    assert len(project.histories("test_it.test_twice")["r0/0"].scoring_failures) == 1
