"""The end-of-run report: what happened, why, and what it did to the data.

Built from the journal: it is the same however many processes the run took.
Failures are grouped by their root, each with one full traceback. The bias counters say how the
rewards of disturbed trajectories compare with those of clean ones: a bias is seen, not guessed.
"""

from collections import Counter

from msgspec import Struct, field

from holdfast.engine.export.row_status import last_failure
from holdfast.journal.journal import Journal
from holdfast.records.errors import JournalCorrupt
from holdfast.records.failure import Failure, shortened
from holdfast.records.group import valid_members
from holdfast.records.history import CAME_BACK_DIFFERENT, History
from holdfast.records.run import Run
from holdfast.records.trajectory import Status

MAX_TRACEBACK_LINE = 1_000
MAX_CAUSES = 20
"""With a traceback each. Errors that name what they were given have as many roots as trajectories.
"""


class Rewards(Struct):
    """A running mean."""

    count: int = 0
    total: float = 0.0

    def add(self, reward: float) -> None:
        self.count += 1
        self.total += reward

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None


class RootCause(Struct):
    """All failures that have the same root."""

    root: str
    cause: str
    phase: str
    failures: int
    permanent: int
    """How many trajectories it failed for good."""
    example: str
    """One trajectory that met it."""
    message: str
    """The first line of what it said there."""
    traceback: str


class RunReport(Struct):
    """The results of a run, from its journal."""

    run: str
    trajectories: int = 0
    by_status: dict[str, int] = {}
    unsettled: int = 0
    turns: int = 0
    sampled_tokens: int = 0
    call_retries: int = 0
    retried_attempts: int = 0
    refills: int = 0
    forks: int = 0
    prefix_breaks: int = 0
    seams: int = 0
    """Replies that went on from their last durable token."""
    interrupted_calls: int = 0
    """Tool calls that were reported to the model as interrupted."""
    worlds_changed: int = 0
    """How often an environment came back other than it was."""
    closes_failed: int = 0
    """Environments that could not be closed; what was done in them stands."""
    refused_calls: int = 0
    """Calls of black-box agents that were refused, or could not be answered."""
    unanswered_calls: int = 0
    """Of these, those of last attempts that were not asked again, and answered."""
    truncations: dict[str, int] = {}
    causes: list[RootCause] = []
    groups: int = 0
    groups_kept: int = 0
    groups_dropped: int = 0
    clean: Rewards = field(default_factory=Rewards)
    disturbed: Rewards = field(default_factory=Rewards)
    corrupt: list[str] = []

    @property
    def permanent_failures(self) -> int:
        return self.by_status.get(Status.FAILED.name, 0)


async def build(journal: Journal, run: Run) -> RunReport:
    """Reads the run once, one trajectory at a time."""
    report = RunReport(run.spec.name)
    statuses: dict[int, list[Status]] = {}
    open_groups: set[int] = set()
    causes: dict[tuple[str, str], RootCause] = {}
    by_status: Counter[Status] = Counter()
    for row in await journal.trajectories(run):
        if row.resting:
            continue
        by_status[row.status] += 1
        statuses.setdefault(row.ordinal, []).append(row.status)
        if not row.settled:
            report.unsettled += 1
            open_groups.add(row.ordinal)
        if row.records:
            try:
                history = History(await journal.history(row.id))
            except JournalCorrupt as error:
                report.corrupt.append(f"{row.key}: {error}")
                continue
            _add(report, causes, str(row.key), history)
    report.trajectories = by_status.total()
    report.by_status = {status.name: by_status[status] for status in sorted(by_status)}
    report.causes = sorted(causes.values(), key=lambda cause: (-cause.permanent, -cause.failures))
    _count_groups(report, run, statuses, open_groups)
    return report


def _add(
    report: RunReport, causes: dict[tuple[str, str], RootCause], name: str, history: History
) -> None:
    generations = history.generations
    report.turns += len(generations)
    report.sampled_tokens += history.sampled_tokens
    report.call_retries += sum(step.tries - 1 for step in generations)
    report.refills += history.life
    report.forks += len(history.forks)
    report.prefix_breaks += history.prefix_breaks
    report.seams += history.seams
    report.interrupted_calls += history.interrupted_calls
    report.worlds_changed += sum(fork.reason == CAME_BACK_DIFFERENT for fork in history.forks)
    report.closes_failed += len(history.close_failures)
    report.refused_calls += len(history.refusals)
    report.unanswered_calls += len(history.unanswered_calls)
    failed = history.status is Status.FAILED
    # Not what failed before it was opened again.
    scored_away = failed and last_failure(history) in history.scoring_failures
    retried = len(history.failures) - (1 if failed and not scored_away else 0)
    report.retried_attempts += max(0, retried)
    for failure in history.failures:
        last = failed and not scored_away and failure is history.failures[-1]
        _add_cause(causes, failure, name, permanent=last)
    for failure in history.close_failures:
        _add_cause(causes, failure, name, permanent=False)
    for failure in history.scoring_failures:
        last = scored_away and failure is history.scoring_failures[-1]
        _add_cause(causes, failure, name, permanent=last)
    if history.status is Status.TRUNCATED and history.finished is not None:
        reason = history.finished.reason
        report.truncations[reason] = report.truncations.get(reason, 0) + 1
    if (reward := history.reward) is not None:
        (report.disturbed if _is_disturbed(history) else report.clean).add(reward)


def _is_disturbed(history: History) -> bool:
    """Whether something that the policy did not do may have shaped it."""
    changed = any(fork.reason == CAME_BACK_DIFFERENT for fork in history.forks)
    unsettled = history.interrupted_calls or history.unanswered_calls
    return bool(history.failures or unsettled or changed)


def _add_cause(
    causes: dict[tuple[str, str], RootCause], failure: Failure, name: str, *, permanent: bool
) -> None:
    cause = causes.get((failure.phase, failure.root))
    if cause is None:
        cause = causes[failure.phase, failure.root] = RootCause(
            root=failure.root,
            cause=failure.cause,
            phase=failure.phase,
            failures=0,
            permanent=0,
            example=name,
            message=failure.line,
            traceback=failure.traceback,
        )
    cause.failures += 1
    cause.permanent += permanent


def _count_groups(
    report: RunReport, run: Run, statuses: dict[int, list[Status]], open_groups: set[int]
) -> None:
    report.groups = len(statuses)
    for ordinal, members in statuses.items():
        if ordinal in open_groups:
            continue
        valid = valid_members(members)
        if valid and run.spec.group.keeps(valid, of=len(members)):
            report.groups_kept += 1
        else:
            report.groups_dropped += 1


def as_text(report: RunReport) -> str:
    """The report for people."""
    # What is recorded as running may have nobody who runs it any more.
    names = {Status.RUNNING.name: "unfinished"}
    counts = ", ".join(
        f"{total} {names.get(status, status)}" for status, total in report.by_status.items()
    )
    lines = [
        f"run {report.run}: {many(report.trajectories, 'trajectory')}: {counts}",
        (
            f"  {many(report.turns, 'turn')}, {many(report.sampled_tokens, 'sampled token')}; "
            f"{report.groups_kept} of {many(report.groups, 'group')} kept, "
            f"{report.groups_dropped} dropped"
        ),
    ]
    disturbances = [
        (report.call_retries, "call", " retried"),
        (report.retried_attempts, "attempt", " retried"),
        (report.refills, "refill", ""),
        (report.forks, "fork", " on replay"),
        (report.prefix_breaks, "prefix break", ""),
        (report.seams, "reply", " gone on with"),
        (report.interrupted_calls, "tool call", " interrupted"),
        (report.worlds_changed, "environment", " that came back different"),
        (report.closes_failed, "environment", " not closed"),
        (report.refused_calls, "agent call", " refused"),
        (report.unanswered_calls, "agent call", " never answered"),
    ]
    if parts := [f"{many(total, what)}{how}" for total, what, how in disturbances if total]:
        lines.append(f"  {', '.join(parts)}")
    if report.truncations:
        reasons = ", ".join(f"{total} {reason}" for reason, total in report.truncations.items())
        lines.append(f"  truncated: {reasons}")
    lines += _rewards(report)
    if report.unsettled:
        lines.append(f"  {report.unsettled} not settled yet")
    lines += [f"  CORRUPT {line}" for line in report.corrupt]
    for cause in report.causes[:MAX_CAUSES]:
        lines += _cause(cause)
    if further := report.causes[MAX_CAUSES:]:
        lines.append(_further(further, report.run))
    if report.permanent_failures:
        lines.append(
            f"\n{report.permanent_failures} failed for good; once the reason is gone, add "
            "--retry-failed (and --accept-changes if the code changed)"
        )
    return "\n".join(lines)


def many(number: int, what: str) -> str:
    """A count of things, in its singular where there is one."""
    plural = f"{what[:-1]}ies" if what.endswith("y") else f"{what}s"
    return f"{number:,} {what if number == 1 else plural}"


def _rewards(report: RunReport) -> list[str]:
    clean, disturbed = report.clean, report.disturbed
    if clean.mean is None and disturbed.mean is None:
        return []
    parts = [
        f"{name} {rewards.mean:.4f} (n={rewards.count})"
        for name, rewards in (("clean", clean), ("disturbed", disturbed))
        if rewards.mean is not None
    ]
    return [f"  mean reward: {', '.join(parts)}"]


def _further(causes: list[RootCause], run: str) -> str:
    failures = sum(cause.failures for cause in causes)
    permanent = sum(cause.permanent for cause in causes)
    return (
        f"\n{many(failures, 'failure')} more, of {len(causes):,} other roots ({permanent:,} for "
        f"good): `holdfast export {run} --what failures` has all of them"
    )


def _cause(cause: RootCause) -> list[str]:
    # A name of a data set's: on one line, whatever is in it.
    name = "".join(char if char.isprintable() else repr(char)[1:-1] for char in cause.example)
    permanent = f"{cause.permanent or 'none'} for good; for instance in {name}"
    lines = cause.traceback.rstrip().splitlines()
    return [
        f"\n[{cause.cause}, {cause.phase}] {cause.failures} × {cause.message} ({permanent})",
        *(f"    {shortened(line, MAX_TRACEBACK_LINE)}" for line in lines),
    ]
