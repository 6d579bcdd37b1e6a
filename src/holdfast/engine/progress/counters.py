"""Progress counts what a run has done as records become durable."""

import time
from collections import deque
from collections.abc import Callable, Sequence

from msgspec import Struct

from holdfast.engine.progress.clustered import RewardMean, error_text, number_text
from holdfast.journal.types import RunProgress, TrajectoryRow
from holdfast.records.encoding.tokens import count
from holdfast.records.history import History
from holdfast.records.step import AttemptFailed, Drafted, Finished, Generated, Record, Refilled
from holdfast.records.trajectory import Status

WINDOW_SECONDS = 60.0
_STEP_SECONDS = 0.5


class ProgressSnapshot(Struct, frozen=True, kw_only=True):
    """The state of a run at one moment."""

    done: int
    """Settled trajectories, including those of earlier processes."""
    total: int
    running: int
    retried: int
    refilled: int
    failed: int
    """Trajectories that failed for good."""
    truncated: int
    turns: int
    """Turns of this process. `tokens` also counts only this process."""
    tokens: int
    tokens_per_second: float
    """The rate in the last minute."""
    mean_reward: float | None
    """The mean over all settled trajectories that have a reward."""
    reward_error: float | None
    """The standard error of the mean, clustered by task; None with fewer than two tasks."""
    seconds: float
    """Seconds since the first trajectory was started."""
    seconds_left: float | None
    """An estimate, without outages of the engine. None as long as there are no data for an
    estimate."""


class Progress:
    """Plain counters, which a display reads at any time."""

    is_transient = False
    """Whether the display disappears at the end, because other lines have shown the result."""
    shows_rewards = False
    """Whether the mean reward is shown, so that earlier rewards must be read."""

    def __init__(self) -> None:
        self.total = 0
        self.done_before = 0
        self.done = 0
        self.running = 0
        self.retried = 0
        self.refilled = 0
        self.failed_before = 0
        self.failed = 0
        self.truncated = 0
        self.turns = 0
        self.tokens = 0
        self.began = time.monotonic()
        self.rewards = RewardMean()
        self.seconds_down: Callable[[], float] = lambda: 0.0
        """Returns for how long the engine has been down so far."""
        self._down_before = 0.0
        self._has_begun = False
        self._recent = RecentRate(self.began)

    def record(self, record: Record) -> None:
        match record:
            case Generated():
                self.turns += 1
                self._sampled(record.counted.completion_tokens - record.drafted)
            case Drafted():
                self._sampled(count(record.ids))
            case AttemptFailed():
                self.retried += 1
            case Refilled():
                self.refilled += 1
            case Finished() if record.status is Status.FAILED:
                self.retried -= 1  # No try followed its last failure.

    def _sampled(self, tokens: int) -> None:
        self.tokens += tokens
        self._recent.add(tokens, time.monotonic())

    def started(self) -> None:
        self.running += 1
        if not self._has_begun:
            # Time before this, such as an engine's start, says nothing about the remaining time.
            self._has_begun, self.began = True, time.monotonic()
            self._down_before = self.seconds_down()
            self._recent = RecentRate(self.began)

    def rewarded(self, task: str, reward: float | None) -> None:
        """Counts the reward of a settled trajectory of the task. This or an earlier process settled
        it."""
        if reward is not None:
            self.rewards.add(task, reward)

    def stopped(self) -> None:
        self.running -= 1

    def settled(self, histories: Sequence[History]) -> None:
        for history in histories:
            self.running -= 1
            self.done += 1
            if history.status is Status.FAILED:
                self.failed += 1
            elif history.status is Status.TRUNCATED:
                self.truncated += 1

    @property
    def is_known(self) -> bool:
        """Whether there is anything to show. A refused run has nothing to show."""
        return bool(self.total)

    @property
    def bar(self) -> tuple[int, int]:
        """The number of settled trajectories and the total."""
        return self.done_before + self.done, self.total

    @property
    def tokens_per_second(self) -> float:
        """The rate in the last minute."""
        return self._recent.per_second(time.monotonic())

    @property
    def seconds_left(self) -> float | None:
        """The estimated seconds until the end, computed from the time in which the engine was up.
        None until a trajectory is done."""
        if self.done == 0:
            return None
        left = self.total - self.done_before - self.done
        down = self.seconds_down() - self._down_before
        return left * max(0.0, time.monotonic() - self.began - down) / self.done

    def snapshot(self) -> ProgressSnapshot:
        return ProgressSnapshot(
            done=self.done_before + self.done,
            total=self.total,
            running=self.running,
            retried=self.retried,
            refilled=self.refilled,
            failed=self.failed_before + self.failed,
            truncated=self.truncated,
            turns=self.turns,
            tokens=self.tokens,
            tokens_per_second=self.tokens_per_second,
            mean_reward=self.rewards.mean,
            reward_error=self.rewards.error,
            seconds=time.monotonic() - self.began,
            seconds_left=self.seconds_left,
        )

    def line(self) -> str:
        """Returns a line about the progress. The most important numbers come first, because a
        narrow terminal cuts off the end."""
        done, left = self.done_before + self.done, self.seconds_left
        if done == self.total and not self.running:
            took = _duration(time.monotonic() - self.began)
            return ", ".join([f"{done}/{done} done in {took}", *self._counted()])
        rest = [] if left is None else [f"{_duration(left)} left"]
        rate = [f"{self.tokens_per_second:,.0f} tokens/s"] if self.turns else []
        parts = [*rest, f"{self.running} running", *self._counted(), *rate]
        return ", ".join([f"{done}/{self.total} done", *parts])

    def _counted(self) -> list[str]:
        failed = self.failed_before + self.failed
        return [
            *([f"{failed} failed"] if failed else []),
            *([f"{self.retried} retried"] if self.retried else []),
            *self._reward(),
            f"{self.turns:,} {'turn' if self.turns == 1 else 'turns'}",
        ]

    def _reward(self) -> list[str]:
        mean, error = self.rewards.mean, self.rewards.error
        if mean is None:
            return []
        return [f"reward {number_text(mean, places=3)}{error_text(error, places=3)}"]


class WatchedProgress(Progress):
    """The progress of a run that other processes work on.

    It comes from the journal's list of trajectories, which has no retries and no tokens.
    """

    def seen(self, rows: Sequence[TrajectoryRow]) -> None:
        rows = [row for row in rows if not row.resting]
        over = sum(row.settled for row in rows)
        if not self.total:
            self.done_before = over
        self.total = len(rows)
        self.done = over - self.done_before
        self.running = sum(bool(row.owner) and not row.settled for row in rows)
        self.failed = sum(row.settled and row.status is Status.FAILED for row in rows)

    def look(self, now: RunProgress) -> None:
        """Updates the progress from the journal's counts. Reading them takes the same time for a
        run of any size."""
        if not self.total:
            self.done_before = now.settled
        self.total, self.done = now.planned, now.settled - self.done_before
        self.running, self.failed = now.planned - now.settled, now.failed

    def _counted(self) -> list[str]:
        return [f"{self.failed} failed"] if self.failed else []


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{rest:02}s" if minutes else f"{rest}s"


# --- what there was lately


class RecentRate:
    """A count over the last minute, in steps of half a second."""

    def __init__(self, began: float):
        self._began = began
        self._steps: deque[tuple[float, int]] = deque()

    def add(self, number: int, now: float) -> None:
        if self._steps and now - self._steps[-1][0] < _STEP_SECONDS:
            at, before = self._steps[-1]
            self._steps[-1] = (at, before + number)
        else:
            self._steps.append((now, number))
        self._forget(now)

    def per_second(self, now: float) -> float:
        self._forget(now)
        seconds = min(WINDOW_SECONDS, now - self._began)
        return sum(number for _, number in self._steps) / max(1e-9, seconds)

    def _forget(self, now: float) -> None:
        while self._steps and now - self._steps[0][0] > WINDOW_SECONDS:
            self._steps.popleft()
