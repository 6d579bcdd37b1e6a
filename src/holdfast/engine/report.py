"""Builds the end-of-run report, which says what happened, why, and how it affected the data.

The report is built from the journal, so it is the same however many processes the run took.
Failures are grouped by their root, each with one full traceback. The bias counters compare the
rewards of disturbed trajectories with those of clean ones, so that a bias can be seen.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field, structs

from holdfast.engine.export.prices import Cost, Prices
from holdfast.engine.progress.clustered import RewardMean, error_text, number_text
from holdfast.journal.rules import give_back
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import TrajectoryRow
from holdfast.journal.worlds import WorldUse, use_of_worlds
from holdfast.records.errors import JournalCorrupt
from holdfast.records.failure import fold_traceback, shortened
from holdfast.records.group import valid_members
from holdfast.records.history import History
from holdfast.records.run import Run
from holdfast.records.samples.summary import RETURNED_NONE, FailureSummary, Summary
from holdfast.records.trajectory import Status
from holdfast.records.usage import NOTHING, UsageByModel

MAX_TRACEBACK_LINE = 1_000
AGAIN = "try again with --retry-failed, and --accept-changes if the code changed"
"""What to do about failures."""
MAX_CAUSES = 20
"""The most causes that a report lists, each with a traceback. Errors that contain their input
may have as many roots as there are trajectories.
"""
_REASONS_SHOWN = 3


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


class ScoreMean(Struct, frozen=True):
    """A mean over trajectories."""

    value: float
    error: float | None
    """The standard error, clustered by task; None with fewer than two tasks."""
    count: int

    def __str__(self) -> str:
        return f"{number_text(self.value)}{error_text(self.error)} (n={self.count:,})"


def _mean_of(rewards: RewardMean) -> ScoreMean | None:
    value = rewards.mean
    return None if value is None else ScoreMean(value, rewards.error, rewards.count)


class RootCause(Struct):
    """All failures that have the same root."""

    root: str
    cause: str
    phase: str
    failures: int
    permanent: int
    """How many trajectories failed for good because of this root."""
    healed: int
    """How many of the failures left no trace in the outcome of their trajectory."""
    example: str
    """The name of one trajectory with this failure."""
    message: str
    """The first line of the error's message."""
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
    """Replies that continued from their last durable token."""
    interrupted_calls: int = 0
    """Tool calls that were reported to the model as interrupted."""
    worlds_changed: int = 0
    """How often an environment came back in a different state."""
    weights_lost: int = 0
    """How often a trajectory began anew because its weights differed after a restart."""
    closes_failed: int = 0
    """Environments that could not be closed. The results of their trajectories stand."""
    refused_calls: int = 0
    """Calls of black-box agents that were refused, or could not be answered."""
    unanswered_calls: int = 0
    """How many of the refused calls were made in the last attempt of their trajectory, and got no
    answer later either."""
    truncations: dict[str, int] = {}
    causes: list[RootCause] = []
    held_failures: dict[str, int] = {}
    """For each consumer, the number of failed trajectories in groups that it holds. They are not
    retried."""
    groups: int = 0
    groups_kept: int = 0
    groups_dropped: int = 0
    clean: Rewards = field(default_factory=Rewards)
    disturbed: Rewards = field(default_factory=Rewards)
    rewards: ScoreMean | None = None
    """The mean reward; None if no trajectory has a reward."""
    pass_at: dict[str, float] = {}
    """pass@k, for rewards of 0 and 1 and several samples. The key is `str(samples)`. The value
    is the share of groups with at least one reward of 1, among groups in which all members have
    a reward.
    """
    metrics: dict[str, ScoreMean] = {}
    corrupt: list[str] = []
    without_score: int = 0
    """Outcomes that their scorer declared to have no valid score."""
    unread: int = 0
    """How many outcomes have no score because a judge's answer could not be read."""
    unscored: dict[str, int] = {}
    """The number of outcomes without a valid score, by the reason that the scorer gave."""
    usage: dict[str, dict[str, int]] = {}
    """Tokens by model and kind. This counts everything that was sampled, including tokens that
    are not exported.
    """
    uncounted_turns: int = 0
    """Turns for which the engine did not report token counts."""
    cost: Cost | None = None
    """The cost by the user's table of prices."""
    worlds: WorldUse | None = None
    """What the run's worlds have used; None without worlds."""
    reused: dict[str, int] = {}
    """How many trajectories were reused from other runs, by the run's name."""
    removed: int = 0
    """Trajectories of removed tasks. They count only in `usage` and `cost`."""

    @property
    def permanent_failures(self) -> int:
        return self.by_status.get(Status.FAILED.name, 0)

    @property
    def nothing_succeeded(self) -> bool:
        """Returns whether every trajectory failed for good, or has no score because its judge's
        answer could not be read."""
        return 0 < self.trajectories == self.permanent_failures + self.unread

    @property
    def all_failed(self) -> str:
        """Words for the case in which nothing succeeded."""
        if self.unread:
            return f"a judge's answers could not be read for {many(self.unread, 'trajectory')}"
        number = self.permanent_failures
        who = "the only trajectory" if number == 1 else f"all {number:,} trajectories"
        return f"{who} failed for good"


Look = Callable[[TrajectoryRow, Summary], None]


async def build(
    journal: Journal,
    run: Run,
    *,
    also: Look | None = None,
    every: Callable[[TrajectoryRow, Summary | JournalCorrupt], None] | None = None,
    prices: Prices | None = None,
) -> RunReport:
    """Reads the summaries of the run once, and builds the report.

    `every` is called for all trajectories. `also` is called for trajectories that belong to a
    current task, have begun, and can be read.
    """
    counts = _Counts(run)
    async for row, summary in journal.summaries(run):
        if every is not None:
            every(row, summary)
        if counts.take(row, summary) and also is not None and isinstance(summary, Summary):
            also(row, summary)
    return await counts.report(journal, prices)


class _Counts:
    """The counts that a report collects while it reads a run."""

    def __init__(self, run: Run):
        self._run = run
        self._report = RunReport(run.spec.name)
        self._statuses: dict[int, list[Status]] = {}
        self._open_groups: set[int] = set()
        self._causes: dict[tuple[str, str], RootCause] = {}
        self._examples: dict[tuple[str, str], int] = {}
        self._by_status: Counter[Status] = Counter()
        self._failed: Counter[str] = Counter()
        self._used: UsageByModel = {}
        self._rewards: dict[str, list[float]] = {}
        self._metrics: dict[str, RewardMean] = {}

    def take(self, row: TrajectoryRow, summary: Summary | JournalCorrupt) -> bool:
        """Counts a trajectory. Returns whether it has begun, can be read, and belongs to a current
        task.
        """
        if row.resting:
            self._count_removed(summary)
            return False
        self._by_status[row.status] += 1
        self._statuses.setdefault(row.ordinal, []).append(row.status)
        self._failed[row.key.task] += row.status is Status.FAILED
        if not row.settled:
            self._report.unsettled += 1
            self._open_groups.add(row.ordinal)
        if isinstance(summary, JournalCorrupt):
            self._report.corrupt.append(f"{row.key}: {summary}")
            return False
        _add(self._report, summary)
        _use(self._used, summary)
        self._count_scores(row.key.task, summary)
        for failure in summary.failures:
            self._examples.setdefault((failure.phase, failure.root), row.id)
            _add_cause(self._causes, failure, str(row.key), summary)
        return row.records > 0

    def _count_scores(self, task: str, summary: Summary) -> None:
        if summary.reward is not None:
            self._rewards.setdefault(task, []).append(summary.reward)
        for name, value in summary.metrics.items():
            self._metrics.setdefault(name, RewardMean()).add(task, value)

    def _add_scores(self, report: RunReport) -> None:
        mean = RewardMean()
        for task, rewards in self._rewards.items():
            for reward in rewards:
                mean.add(task, reward)
        report.rewards = _mean_of(mean)
        results = {name: _mean_of(values) for name, values in self._metrics.items()}
        report.metrics = {name: mean for name, mean in results.items() if mean is not None}
        samples, groups = self._run.spec.samples, self._rewards.values()
        whole = [rewards for rewards in groups if len(rewards) == samples]
        if samples > 1 and whole and all(set(rewards) <= {0.0, 1.0} for rewards in groups):
            report.pass_at = {str(samples): sum(map(max, whole)) / len(whole)}

    def _count_removed(self, summary: Summary | JournalCorrupt) -> None:
        """Counts the usage of a trajectory whose task was removed.

        If its log cannot be read, it is counted only when its task is added again.
        """
        if isinstance(summary, Summary) and summary.used:
            _use(self._used, summary)
            self._report.removed += 1

    async def report(self, journal: Journal, prices: Prices | None) -> RunReport:
        report, causes, used = self._report, self._causes, self._used
        report.trajectories = self._by_status.total()
        report.by_status = {
            status.name: self._by_status[status] for status in sorted(self._by_status)
        }
        report.causes = sorted(causes.values(), key=lambda each: (-each.permanent, -each.failures))
        for key, cause in causes.items():
            cause.traceback = await _read_traceback(journal, self._examples[key], cause)
        report.usage = {model: usage.as_fields() for model, usage in sorted(used.items())}
        rows = await journal.worlds(run=self._run, removed=True)
        report.worlds = use_of_worlds(rows) if rows else None
        report.cost = _cost(prices, used, report.worlds)
        self._add_scores(report)
        _count_groups(report, self._run, self._statuses, self._open_groups)
        if report.permanent_failures:
            held = await journal.held_groups(self._run)
            failed = {
                name: sum(self._failed[task] for task in tasks) for name, tasks in held.items()
            }
            report.held_failures = {name: count for name, count in failed.items() if count}
        return report


def _cost(prices: Prices | None, used: UsageByModel, worlds: WorldUse | None) -> Cost | None:
    if prices is None:
        return None
    cost = prices.cost_of(used)
    hours = 0.0 if worlds is None else prices.of_worlds(worlds.seconds)
    return structs.replace(cost, amount=cost.amount + hours)


def _use(used: UsageByModel, summary: Summary) -> None:
    for model, usage in summary.used.items():
        used[model] = used.get(model, NOTHING) + usage


async def _read_traceback(journal: Journal, trajectory: int, cause: RootCause) -> str:
    """Returns the traceback of the trajectory's first failure with this root. Reads the
    trajectory's log, because only the log has tracebacks."""
    try:
        history = History(await journal.history(trajectory))
    except JournalCorrupt:
        return ""
    failures = (*history.failures, *history.close_failures, *history.scoring_failures)
    alike = (each for each in failures if (each.phase, each.root) == (cause.phase, cause.root))
    return next((failure.traceback for failure in alike), "")


def _add(report: RunReport, summary: Summary) -> None:
    if summary.reused:
        report.reused[summary.reused] = report.reused.get(summary.reused, 0) + 1
    report.turns += summary.turns
    report.sampled_tokens += summary.sampled_tokens
    report.uncounted_turns += summary.uncounted_turns
    report.call_retries += summary.call_retries
    report.retried_attempts += summary.retried_attempts
    report.refills += summary.refills
    report.forks += summary.forks
    report.prefix_breaks += summary.prefix_breaks
    report.seams += summary.seams
    report.interrupted_calls += summary.interrupted_calls
    report.worlds_changed += summary.environments_changed
    report.weights_lost += summary.weights_lost
    report.closes_failed += sum(failure.closing for failure in summary.failures)
    report.refused_calls += summary.refused_calls
    report.unanswered_calls += summary.unanswered_calls
    if summary.status is Status.TRUNCATED:
        reason = summary.reason
        report.truncations[reason] = report.truncations.get(reason, 0) + 1
    report.unread += summary.unread
    if summary.unscored is not None:
        report.without_score += 1
        _add_unscored(report.unscored, summary.unscored)
    if summary.reward is not None:
        (report.disturbed if _is_disturbed(summary) else report.clean).add(summary.reward)


def _add_unscored(unscored: dict[str, int], reason: str) -> None:
    if reason not in unscored and len(unscored) >= MAX_CAUSES:
        reason = "for other reasons"
    unscored[reason] = unscored.get(reason, 0) + 1


def _is_disturbed(summary: Summary) -> bool:
    """Returns whether something other than the policy may have shaped the trajectory."""
    return bool(
        summary.retried_attempts
        or summary.interrupted_calls
        or summary.unanswered_calls
        or summary.environments_changed
    )


def _add_cause(
    causes: dict[tuple[str, str], RootCause], failure: FailureSummary, name: str, summary: Summary
) -> None:
    cause = causes.get((failure.phase, failure.root))
    if cause is None:
        cause = causes[failure.phase, failure.root] = RootCause(
            root=failure.root,
            cause=failure.cause,
            phase=failure.phase,
            failures=0,
            permanent=0,
            healed=0,
            example=name,
            message=failure.line,
            traceback="",
        )
    cause.failures += 1
    cause.permanent += failure.permanent
    cause.healed += summary.status.is_outcome and not summary.interrupted_calls


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


def as_text(
    report: RunReport, *, training: Sequence[str] = (), full_tracebacks: bool = False
) -> str:
    """Returns the report as text.

    `training` has lines about the groups of a training. Without `full_tracebacks`, frames of
    Holdfast and tracebacks of retried errors are left out.
    """
    # A trajectory recorded as running may have no process any more.
    names = {Status.RUNNING.name: "unfinished"}
    counts = ", ".join(
        f"{total} {names.get(status, status)}" for status, total in report.by_status.items()
    )
    lines = [
        f"run {report.run}: {many(report.trajectories, 'trajectory')}: {counts}",
        (
            f"  {many(report.turns, 'turn')}, "
            f"{sampled_text(report.sampled_tokens, uncounted=report.uncounted_turns)}; "
            f"{report.groups_kept} of {many(report.groups, 'group')} kept, "
            f"{report.groups_dropped} dropped"
        ),
        *(f"  {count:,} reused from {run}" for run, count in report.reused.items()),
        *_usage_lines(report),
        *_nothing_generated(report),
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
        (report.weights_lost, "trajectory", " begun anew, their weights lost"),
        (report.closes_failed, "environment", " not closed"),
        (report.refused_calls, "agent call", " refused"),
        (report.unanswered_calls, "agent call", " never answered"),
    ]
    if parts := [f"{many(total, what)}{how}" for total, what, how in disturbances if total]:
        lines.append(f"  {', '.join(parts)}")
    if report.truncations:
        reasons = ", ".join(f"{total} {reason}" for reason, total in report.truncations.items())
        lines.append(f"  truncated: {reasons}")
    lines += [*_rewards(report), *training]
    if report.unsettled:
        lines.append(f"  {report.unsettled} not settled yet")
    lines += [f"  CORRUPT {line}" for line in report.corrupt]
    shown = report.causes[:MAX_CAUSES]
    for cause in shown:
        if cause.permanent or full_tracebacks:
            lines += _cause(cause, full=full_tracebacks)
    if others := [cause for cause in shown if not (cause.permanent or full_tracebacks)]:
        lines += ["", *map(_headline, others)]
    if further := report.causes[MAX_CAUSES:]:
        lines.append(_further(further, report.run))
    if report.permanent_failures:
        what = "they are in no baseline and in no loss" if training else _again(report)
        lines.append(f"\n{report.permanent_failures} failed for good; {what}")
    return "\n".join(lines)


def _again(report: RunReport) -> str:
    """Returns advice about failures. Groups that a consumer has must be given back before a
    retry."""
    if not report.held_failures:
        return AGAIN
    held = [f"consumer {name!r} has {count}" for name, count in report.held_failures.items()]
    first = give_back(next(iter(report.held_failures)))
    return (
        f"{' and '.join(held)} of them in its groups, which --retry-failed leaves as they are "
        f"until they are given back, {first}; {AGAIN}"
    )


def many(number: int, what: str) -> str:
    """Formats a count with its noun, in the singular for 1."""
    plural = f"{what[:-1]}ies" if what.endswith("y") else f"{what}s"
    return f"{number:,} {what if number == 1 else plural}"


def escape_text(text: str) -> str:
    """Returns the text on one line, with control characters as escapes."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def escape_lines(text: str) -> str:
    """Keeps line breaks, and writes other control characters as escapes."""
    return "\n".join(escape_text(line) for line in text.split("\n"))


def sampled_text(tokens: int, *, uncounted: int) -> str:
    """Describes the number of sampled tokens, and the turns whose tokens the engine did not
    count.
    """
    if not uncounted:
        return many(tokens, "sampled token")
    missing = f"the tokens of {many(uncounted, 'turn')} not counted by the engine"
    return f"{many(tokens, 'sampled token')} and {missing}" if tokens else missing


def usage_text(usage: Mapping[str, int]) -> str:
    """Returns, for example, `1,204 tokens of prompts (512 cached) and 96 of replies (40
    reasoning)`.
    """
    cached, reasoning = usage["cached_tokens"], usage["reasoning_tokens"]
    return (
        f"{many(usage['prompt_tokens'], 'token')} of prompts"
        f"{f' ({cached:,} cached)' if cached else ''} and {usage['completion_tokens']:,} of replies"
        f"{f' ({reasoning:,} reasoning)' if reasoning else ''}"
    )


def _nothing_generated(report: RunReport) -> list[str]:
    """Returns a line if nothing was generated, or else an empty list.

    Some rollouts generate nothing on purpose, and only return outcomes. For others, the line shows
    that the wrong function was run.
    """
    over = report.trajectories - report.unsettled - report.permanent_failures
    if report.turns or report.corrupt or over < 1:
        return []
    return [f"  nothing was generated: the rollout made no turn in {many(over, 'trajectory')}"]


def _usage_lines(report: RunReport) -> list[str]:
    """Returns a line for each model's usage, and a line with the total cost."""
    counted = {model: usage for model, usage in report.usage.items() if any(usage.values())}
    lines = [f"  {model}: {usage_text(usage)}" for model, usage in counted.items()]
    if (worlds := report.worlds) is not None:
        hours, cpu = sum(worlds.seconds.values()) / 3600, worlds.cpu_seconds / 3600
        lines.append(f"  {many(worlds.worlds, 'world')}: {hours:.2f} h, {cpu:.2f} h of CPU")
    if report.cost is not None:
        lines.append(f"  cost: {report.cost}")
    if report.removed and lines:
        lines[-1] += f" (with {many(report.removed, 'trajectory')} of tasks that were removed)"
    return lines


def _rewards(report: RunReport) -> list[str]:
    clean, disturbed = report.clean, report.disturbed
    missing = (
        [f"  {many(report.without_score, 'trajectory')} without a valid score: in no mean"]
        if report.without_score
        else []
    )
    if report.rewards is None:
        return [*missing, *_why_none_is_scored(report.unscored)]
    rates = [f"pass@{k} {rate:.3f}" for k, rate in report.pass_at.items()]
    lines = [f"  mean reward: {', '.join([str(report.rewards), *rates])}"]
    if disturbed.mean is not None:
        parts = [
            f"{name} {number_text(rewards.mean)} (n={rewards.count})"
            for name, rewards in (("clean", clean), ("disturbed", disturbed))
            if rewards.mean is not None
        ]
        lines.append(f"    of these: {', '.join(parts)}")
    if report.metrics:
        metrics = (f"{escape_text(name)} {mean}" for name, mean in report.metrics.items())
        lines.append(f"  metrics: {', '.join(metrics)}")
    return [*lines, *missing]


def _why_none_is_scored(unscored: Mapping[str, int]) -> list[str]:
    """Lists the most frequent reasons for missing scores. If every scorer call returned None,
    asks whether a `return` is missing.
    """
    reasons = Counter(unscored).most_common()
    if [reason.endswith(RETURNED_NONE) for reason, _ in reasons] == [True]:
        return [f"  {reasons[0][0]} each time; is a return missing?"]
    rest = len(reasons) - _REASONS_SHOWN
    lines = [f"    {total} × {reason}" for reason, total in reasons[:_REASONS_SHOWN]]
    return [*lines, f"    and {many(rest, 'other reason')}"] if rest > 0 else lines


def _further(causes: list[RootCause], run: str) -> str:
    failures = sum(cause.failures for cause in causes)
    permanent = sum(cause.permanent for cause in causes)
    return (
        f"\n{many(failures, 'failure')} more, of {len(causes):,} other roots ({permanent:,} for "
        f"good): `holdfast export {run} --what failures` has all of them"
    )


def _headline(cause: RootCause) -> str:
    end = "healed" if cause.healed == cause.failures else f"{cause.healed} healed"
    if cause.permanent:
        end = f"{many(cause.permanent, 'trajectory')} failed for good"
    return (
        f"[{cause.cause}, {cause.phase}] {cause.failures} × {cause.message} ({end}; for instance "
        f"in {escape_text(cause.example)})"
    )


def _cause(cause: RootCause, *, full: bool) -> list[str]:
    text = cause.traceback if full else fold_traceback(cause.traceback, cause.message)
    return [
        f"\n{_headline(cause)}",
        *(f"    {shortened(line, MAX_TRACEBACK_LINE)}" for line in text.rstrip().splitlines()),
    ]
