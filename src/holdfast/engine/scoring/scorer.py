"""Scorers: functions from finished trajectories to rewards."""

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.records.errors import ScorerTimeout, ThreadsHang, UsageError
from holdfast.records.view import TrajectoryView
from holdfast.rollout.episodes.environment import as_number
from holdfast.rollout.threads.contain import contain, end_task, finishes_within
from holdfast.rollout.threads.pool import DaemonThreads, StillRunning
from holdfast.rollout.tools.result import MAX_RESULT
from holdfast.rollout.tools.tool import result_text

MOST_HANGING = 48
"""Threads that one scorer may leave behind: fewer than make the next call impossible."""
_GROUP = "__holdfast_group_scorer__"


class Score(Struct, frozen=True):
    """A reward, with the numbers and words that explain it.

    A `reward` of None says that there is no valid score: the trajectory is in no mean.
    """

    reward: float | None
    metrics: Mapping[str, float] = {}
    reasons: Mapping[str, str] = {}
    details: Mapping[str, object] = {}
    """Whatever else is to be kept with it: JSON."""


Scored = Score | float | int
PointScorer = Callable[[TrajectoryView], "Scored | Awaitable[Scored]"]
GroupScorer = Callable[[Sequence[TrajectoryView]], "Sequence[Scored] | Awaitable[Sequence[Scored]]"]


def group_scorer(function: GroupScorer) -> GroupScorer:
    """Marks a scorer that takes all valid trajectories of a group and returns a score for each."""
    setattr(function, _GROUP, True)
    return function


def is_group_scorer(function: object) -> bool:
    return bool(getattr(function, _GROUP, False))


class Scorer:
    """A scorer of either kind, sync or async, under one interface.

    A synchronous scorer runs in a thread of its own: it cannot block the loop, and one that hangs
    is left behind without holding up the end of the process.
    """

    def __init__(self, function: "PointScorer | GroupScorer"):
        if not callable(function):
            raise UsageError(f"{function!r} is no scorer: it wants a function of a trajectory")
        self.name = str(getattr(function, "__name__", type(function).__name__))
        self.is_group = is_group_scorer(function)
        self._function: Callable[[Any], Any] = function
        self._is_async = inspect.iscoroutinefunction(function)
        self._threads = DaemonThreads("scorers")
        self._hanging: list[_InThread] = []

    async def score(
        self, views: Sequence[TrajectoryView], *, seconds: float | None = None
    ) -> list[Score]:
        """A score for each view; a pointwise scorer is given exactly one.

        Raises `ScorerTimeout` where it does not answer within so many seconds.
        """
        if not self.is_group:
            (view,) = views
            return [_score(await self._call(view, seconds), self.name)]
        found = await self._call(list(views), seconds)
        if not isinstance(found, Sequence) or len(found) != len(views):
            raise TypeError(
                f"group scorer {self.name} wants to return a list of {len(views)} scores, not "
                f"{found!r}"
            )
        return [_score(item, self.name) for item in found]

    async def _call(self, argument: object, seconds: float | None) -> object:
        if self._is_async:
            return await self._awaited(lambda: self._function(argument), seconds, seconds)
        began = asyncio.get_running_loop().time()
        found = await self._in_thread(_InThread(self._function, argument), seconds)
        if not isinstance(found, Awaitable):
            return found
        left = (
            None
            if seconds is None
            else max(0.0, began + seconds - asyncio.get_running_loop().time())
        )
        return await self._awaited(lambda: found, left, seconds)

    async def _in_thread(self, call: "_InThread", seconds: float | None) -> object:
        self._hanging = [item for item in self._hanging if item.is_running]
        if len(self._hanging) >= MOST_HANGING:
            raise ThreadsHang(
                f"{len(self._hanging)} calls of scorer {self.name} did not answer within "
                f"{seconds:g} s and still hang; give it a deadline of its own"
            )
        try:
            return await self._threads.run(call, seconds=seconds)
        except StillRunning:
            self._hanging.append(call)
            raise self._late(seconds) from None

    async def _awaited(
        self, make: Callable[[], Awaitable[object]], left: float | None, seconds: float | None
    ) -> object:
        """In a task of its own: one that swallows its cancellation cannot hold the run up."""

        async def work() -> object:
            return await contain(make())

        job = asyncio.create_task(work(), name=f"scorer {self.name}")
        try:
            if not await finishes_within(job, left):
                raise self._late(seconds)
        finally:
            await end_task(job)
        if job.cancelled():
            raise RuntimeError(f"scorer {self.name} cancelled itself")
        return job.result()

    def _late(self, seconds: float | None) -> ScorerTimeout:
        return ScorerTimeout(f"scorer {self.name} did not answer within {seconds:g} s")


class _InThread:
    """One call of a synchronous scorer, which may outlive its deadline."""

    def __init__(self, function: Callable[[Any], Any], argument: object):
        self._function = function
        self._argument = argument
        self.is_running = False
        """From its beginning to its end; never, where it was given up before it had its turn."""

    def __call__(self) -> object:
        self.is_running = True
        try:
            return self._function(self._argument)
        finally:
            self.is_running = False


def _score(found: object, name: str) -> Score:
    """Checked here, where an error is the scorer's: what is recorded must be readable."""
    score = found if isinstance(found, Score) else Score(found)  # type: ignore[arg-type]  # next
    reward = as_number(score.reward)
    if reward is None and (score.reward is not None or score is not found):
        raise TypeError(f"scorer {name} returned {found!r}; it wants a number or a Score")
    if reward is not None and not math.isfinite(reward):
        raise ValueError(f"scorer {name} returned {reward}, which is no reward")
    return Score(
        reward,
        {_word(metric): _metric(metric, value, name) for metric, value in score.metrics.items()},
        {_word(what): result_text(why) for what, why in score.reasons.items()},
        _readable(score.details, name),
    )


def _word(name: object) -> str:
    return result_text(str(name))


def _metric(metric: str, value: float, name: str) -> float:
    found = float(value)
    if not math.isfinite(found):
        raise ValueError(f"scorer {name} returned {found} as its metric {metric!r}")
    return found


def _readable(details: Mapping[str, object], name: str) -> dict[str, object]:
    """The details as they will be read again, or the scorer's error."""
    try:
        encoded = msgspec.msgpack.encode(details)
        found = msgspec.msgpack.decode(encoded)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise TypeError(f"scorer {name} returned details that are no JSON: {error}") from error
    if len(encoded) > MAX_RESULT:
        raise ValueError(f"scorer {name} returned {len(encoded):,} bytes of details")
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise TypeError(f"scorer {name} returned details that are no object with names")
    return found
