"""A summary of a trajectory, so that lists and reports need not read its log.

The summary follows from the log. A journal stores the summary of each settled trajectory in the
commit that settles it. `holdfast journal check` compares it with the log.
"""

import math

from msgspec import Struct

from holdfast.records.failure import Failure, shortened
from holdfast.records.history import CAME_BACK_DIFFERENT, WEIGHTS_LOST, History
from holdfast.records.step import EnvironmentStepped, Generated, VersionSource
from holdfast.records.trajectory import Status
from holdfast.records.usage import MADE_JUDGE, UsageByModel, is_unread

RETURNED_NONE = "returned None"
"""The end of the reason for a score that the scorer did not explain."""


class FailureSummary(Struct, frozen=True, array_like=True, gc=False):
    """One failure of a trajectory, without its traceback."""

    phase: str
    root: str
    cause: str
    line: str
    """The type of the failure and the first line of its message."""
    permanent: bool
    """Whether the failure ended the trajectory for good."""
    closing: bool
    """Whether the failure is that an environment could not be closed. The results of the episode
    stay valid."""


class Summary(Struct, frozen=True, array_like=True, gc=False):
    """A summary of one trajectory in numbers."""

    records: int = 0
    """The number of records that the summary covers."""
    status: Status = Status.PENDING
    reward: float | None = None
    reason: str = ""
    """The reason why the trajectory was truncated or failed."""
    turns: int = 0
    sampled_tokens: int = 0
    uncounted_turns: int = 0
    call_retries: int = 0
    retried_attempts: int = 0
    refills: int = 0
    forks: int = 0
    prefix_breaks: int = 0
    seams: int = 0
    interrupted_calls: int = 0
    environments_changed: int = 0
    weights_lost: int = 0
    refused_calls: int = 0
    unanswered_calls: int = 0
    seconds: float = 0.0
    """The seconds that generations, tools and environments took, over all attempts that count."""
    unscored: str | None = None
    """Why the scorer gave an outcome no score; None if there is a score, or if the trajectory was
    not scored."""
    unread: bool = False
    """Whether the score is missing because a judge's answers could not be read."""
    metrics: dict[str, float] = {}
    failures: tuple[FailureSummary, ...] = ()
    used: UsageByModel = {}
    """The usage of everything that was ever sampled, by model."""
    versions: tuple[str, ...] | None = ()
    """The weight versions that sampled the trajectory; None if one is unknown."""
    reused: str = ""
    """The run that recorded the trajectory's beginning, if it was another run; "" otherwise."""
    made_judge: str = ""
    """The identity of the first judge that was asked, if the scoring function made a judge itself;
    "" otherwise."""


def summarize(history: History) -> Summary:
    # Not `history.generations`, which sorts: order does not matter here, but speed does.
    replies = [step for step in history.steps.values() if isinstance(step, Generated)]
    final = final_failure(history)
    return Summary(
        records=history.records,
        status=history.status,
        reward=history.reward,
        reason=_reason(history, final),
        turns=len(replies),
        sampled_tokens=sum(step.counted.completion_tokens for step in replies),
        uncounted_turns=sum(not (step.ids or step.usage or step.trainable) for step in replies),
        call_retries=sum(step.tries - 1 for step in replies),
        retried_attempts=sum(failure is not final for failure in history.failures),
        refills=history.life,
        forks=len(history.forks),
        prefix_breaks=sum(bool(step.prefix_break) for step in replies),
        seams=sum(len(step.seams) for step in replies),
        interrupted_calls=len(history.interrupted_calls),
        environments_changed=sum(fork.reason == CAME_BACK_DIFFERENT for fork in history.forks),
        weights_lost=sum(fork.reason == WEIGHTS_LOST for fork in history.forks),
        refused_calls=len(history.refusals),
        unanswered_calls=len(history.unanswered_calls),
        seconds=_seconds(history, replies),
        unscored=_unscored(history),
        unread=_is_unread(history),
        metrics=_metrics(history),
        failures=_failures(history, final),
        used=history.used,
        versions=_versions(replies),
        reused=history.reused,
        made_judge=_made_judge(history),
    )


def last_failure(history: History) -> Failure | None:
    """Returns the last failure of scoring if scoring failed, otherwise the last failure of the
    rollout; None without failures."""
    scored_last = history.finished is not None and history.finished.reason == "scoring failed"
    failures = history.scoring_failures if scored_last else history.failures
    return failures[-1] if failures else None


def final_failure(history: History) -> Failure | None:
    """Returns the failure that ended a FAILED trajectory; None for a trajectory that did not
    fail."""
    return last_failure(history) if history.status is Status.FAILED else None


def _reason(history: History, final: Failure | None) -> str:
    """Returns the line of the failure `final`. The line has the numbers that the failure's root
    lacks. Without a failure, returns the reason of the end."""
    if final is not None:
        return final.line
    return history.finished.reason if history.finished is not None else ""


def _failures(history: History, final: Failure | None) -> tuple[FailureSummary, ...]:
    kinds = (
        (history.failures, False),
        (history.close_failures, True),
        (history.scoring_failures, False),
    )
    return tuple(
        FailureSummary(
            failure.phase,
            failure.root,
            failure.cause.value,
            failure.line,
            failure is final,
            closing,
        )
        for failures, closing in kinds
        for failure in failures
    )


def _metrics(history: History) -> dict[str, float]:
    scored = history.scored if history.status.is_outcome else None
    return {} if scored is None else scored.metrics


def _unscored(history: History) -> str | None:
    scored = history.scored
    if scored is None or history.reward is not None or history.status is Status.FAILED:
        return None
    why = "; ".join(scored.reasons.values()) or f"scorer {scored.scorer} {RETURNED_NONE}"
    return shortened(why.partition("\n")[0])


def _is_unread(history: History) -> bool:
    scored = history.scored if history.status.is_outcome else None
    return scored is not None and scored.reward is None and is_unread(scored.details)


def _made_judge(history: History) -> str:
    scored = history.scored if history.status.is_outcome else None
    return "" if scored is None else str(scored.details.get(MADE_JUDGE, ""))


def _seconds(history: History, replies: list[Generated]) -> float:
    """Returns the time of the trajectory's steps, without the time between a kill and the
    resume."""
    spent = [result.seconds for result in history.results.values()]
    spent += [step.seconds for step in replies]
    steps = history.steps.values()
    spent += [step.seconds for step in steps if isinstance(step, EnvironmentStepped)]
    return round(math.fsum(spent), 6)


def _versions(replies: list[Generated]) -> tuple[str, ...] | None:
    spans = [span for step in replies for span in step.versions]
    if any(span.source is VersionSource.UNKNOWN for span in spans):
        return None
    return tuple(sorted({span.version for span in spans}))
