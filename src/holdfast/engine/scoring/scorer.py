"""Scorers are functions from finished trajectories to rewards."""

import asyncio
import functools
import inspect
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
from msgspec import Struct, structs

from holdfast.engine.options import PATIENCE
from holdfast.engine.scoring.engine_use import EngineUse, track_engine_use
from holdfast.records.encoding.declared import NamedFields, function_name
from holdfast.records.errors import ScorerTimeout, ThreadsHang, UsageError
from holdfast.records.failure import Failure
from holdfast.records.step import Record
from holdfast.records.task import Task
from holdfast.records.usage import (
    JUDGE,
    MADE_JUDGE,
    NOTHING,
    UNREAD_JUDGE,
    USED,
    UsageByModel,
    add_usages,
    judge_usage,
)
from holdfast.records.view import TrajectoryView
from holdfast.rollout.code.fingerprint import identified_in
from holdfast.rollout.episodes.environment import as_number
from holdfast.rollout.threads.contain import contain, end_task, finishes_in_time
from holdfast.rollout.threads.pool import DaemonThreads, StillRunning
from holdfast.rollout.tools.result import MAX_RESULT
from holdfast.rollout.tools.tool import result_text

SINGLE = "one argument, the finished trajectory (its task is trajectory.task)"
GROUP = "one argument, the list of a task's finished trajectories"
MOST_HANGING = 48
"""How many hanging threads one scorer may leave behind. With more, the next call could get no
thread.
"""
MAX_SHOWN = 200
"""The most characters of a returned value in an error message."""
CHECK = "check_before_run"
"""The name of a scorer's method that checks before a run whether it can score, and returns its
model.
"""
CHECK_TASK = "check_task"
"""The name of a scorer's method that checks whether it can score a task."""
GROUP_MARK = "__holdfast_group_scorer__"
"""The attribute that marks a scorer of whole groups."""


class Score(Struct, frozen=True, metaclass=NamedFields):
    """A reward, with numbers and words that explain it.

    A `reward` of None means that there is no valid score. The trajectory is then left out of every
    mean.
    """

    reward: float | None
    metrics: Mapping[str, float] = {}
    reasons: Mapping[str, str] = {}
    details: Mapping[str, object] = {}
    """Anything else to keep with the score. It must be JSON."""


Scored = Score | float | int | Mapping[str, object] | None
"""What a scorer may return: a number, a bool, a dict with its `score`, a `Score`, or None for
no valid score.
"""
ACCEPTED = "a number, a bool, a dict with a 'score', a Score, or None (no valid score)"
Read = Callable[[TrajectoryView], Awaitable[Sequence[Record]]]
"""Reads the records of a trajectory, for a scorer in another process."""
PointScorer = Callable[[TrajectoryView], "Scored | Awaitable[Scored]"]
GroupScorer = Callable[[Sequence[TrajectoryView]], "Sequence[Scored] | Awaitable[Sequence[Scored]]"]


class NotAScore(UsageError, TypeError):
    """A scorer returned a value that is not a score."""


class ScorerFailed(Exception):
    """A scorer in another process failed. The failure was classified in that process."""

    def __init__(self, failure: Failure):
        super().__init__(failure.line)
        self.failure = failure


def group_scorer(function: GroupScorer) -> GroupScorer:
    """Marks a scorer that takes all valid trajectories of a group and returns a score for each."""
    if not callable(function):
        raise UsageError(f"group_scorer marks a function, not {function!r:.100}")
    setattr(function, GROUP_MARK, True)
    return function


def is_group_scorer(function: object) -> bool:
    return bool(getattr(function, GROUP_MARK, False))


class Scorer:
    """One interface for all scorers, whether they score one trajectory or a group, and whether they
    are sync or async.

    A synchronous scorer runs in its own thread, so it cannot block the loop. A call that hangs is
    left behind, and does not delay the end of the process.
    """

    def __init__(self, function: "PointScorer | GroupScorer", *, called: str = ""):
        """`called` is the name in error messages; by default "scorer" and the function's name."""
        self.is_group = is_group_scorer(function)
        check_scorer(function, is_group=self.is_group)
        self.name = function_name(function)
        self._called = called or f"scorer {self.name}"
        self._function: Callable[[Any], Any] = function
        self._is_async = inspect.iscoroutinefunction(function)
        self._threads = DaemonThreads("scorers")
        self._hanging: list[_InThread] = []
        self._is_open = False
        self._users = 0

    def check_tasks(
        self, tasks: Sequence[Task], *, where: Callable[[Task], str] | None = None
    ) -> None:
        """Raises `UsageError` for the first task that the scorer knows it cannot score. `where`
        returns the task's place for the error."""
        for task in tasks if hasattr(self._function, CHECK_TASK) else ():
            try:
                getattr(self._function, CHECK_TASK)(task)
            except UsageError as error:
                place = f"task {task.id}" if where is None else where(task)
                raise UsageError(f"{place}: {error}") from None

    async def check(self, *, samples: int) -> list[str]:
        """Checks the scorer before anything is sampled, and returns the models that it asks.

        Only some scorers can check themselves, for example a judge or a function that names a
        judge. Raises the errors of these checks. `samples` is the number of samples per task.
        """
        named = (self._function, *identified_in(self._function))
        judges = {id(each): each for each in named if hasattr(each, CHECK)}
        # If a function asks a judge, the function decides how many it compares.
        samples = samples if self.is_group and hasattr(self._function, CHECK) else 1
        models = {await getattr(judge, CHECK)(samples=samples) for judge in judges.values()}
        return sorted(filter(None, models))

    async def score(
        self,
        views: Sequence[TrajectoryView],
        *,
        seconds: float | None = None,
        patience: float = PATIENCE.default,
        read: Read | None = None,
        on_extended: Callable[[float], None] = lambda seconds: None,
    ) -> list[Score]:
        """Returns a score for each view. A scorer of single trajectories is given exactly one view.

        Raises `ScorerTimeout` if the scorer does not answer within `seconds`. The time in which an
        engine that it asks was down is not counted; `on_extended` is called when such time is
        added. Raises `EndpointDown` or `PolicyRefused` if that engine cannot be used, or is down
        for longer than `patience`. These errors are not failures of the scored trajectories.
        """
        await self._open()
        group = list(views)
        with track_engine_use(patience) as use:
            deadline = _Deadline(seconds, use, on_extended)
            try:
                returned = await self._call(group if self.is_group else views[0], deadline)
            except Exception as error:
                if use.unusable is not None and error is not use.unusable:
                    raise use.unusable from error
                raise
        each = by_position(returned, views, group, self._called) if self.is_group else [returned]
        scores = [checked(item, self._called) for item in each]
        if use.makes_judges:
            scores = _with_details(scores, {MADE_JUDGE: use.first_judge})
        return _with_usage(_with_unread(scores) if use.unread else scores, use.used)

    async def first_judge(
        self,
        views: Sequence[TrajectoryView],
        *,
        seconds: float | None = None,
        read: Read | None = None,
    ) -> str:
        """Returns the identity of the first judge that the scorer would ask about the views; "" if
        it would ask none. No engine is asked."""
        await self._open()
        with track_engine_use(0, asks=False) as use:
            # Another error than `FirstJudgeReached` will come again when the views are scored.
            with suppress(Exception):
                deadline = _Deadline(seconds, use, lambda _: None)
                await self._call(list(views) if self.is_group else views[0], deadline)
            return use.first_judge

    @asynccontextmanager
    async def in_use(self) -> AsyncIterator[None]:
        """Counts a user of the scorer during the block. When the last open block ends, closes what
        the scorer has opened.

        Several blocks may be open at once, because the evaluations of a training share its scorer.
        The scorer can be used again afterwards.
        """
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                await self.aclose()

    async def aclose(self) -> None:
        """Closes what the scorer has opened. The scorer may be used again."""
        if self._is_open:
            self._is_open = False
            await self._function.__aexit__(None, None, None)  # type: ignore[attr-defined]

    async def _open(self) -> None:
        """Enters the scorer if it is an async context manager, such as a judge. It stays open
        until `aclose`.
        """
        if not self._is_open and hasattr(type(self._function), "__aenter__"):
            self._is_open = True
            await self._function.__aenter__()  # type: ignore[attr-defined]

    async def _call(self, argument: object, deadline: "_Deadline") -> object:
        if self._is_async:
            return await self._awaited(lambda: self._function(argument), deadline)
        returned = await self._in_thread(_InThread(self._function, argument), deadline)
        if not isinstance(returned, Awaitable):
            return returned
        return await self._awaited(lambda: returned, deadline)

    async def _in_thread(self, call: "_InThread", deadline: "_Deadline") -> object:
        self._hanging = [item for item in self._hanging if item.is_running]
        if len(self._hanging) >= MOST_HANGING:
            raise ThreadsHang(
                f"{len(self._hanging)} calls of {self._called} did not answer within "
                f"{deadline.seconds:g} s and still hang; give it a deadline of its own"
            )
        try:
            return await self._threads.run(call, left=deadline.left)
        except StillRunning:
            self._hanging.append(call)
            raise self._late(deadline) from None

    async def _awaited(
        self, make: Callable[[], Awaitable[object]], deadline: "_Deadline"
    ) -> object:
        """Awaits the call in its own task, so that a call that swallows its cancellation cannot
        delay the run.
        """

        async def work() -> object:
            return await contain(make())

        job = asyncio.create_task(work(), name=f"scorer {self.name}")
        try:
            if not await finishes_in_time(job, deadline.left):
                raise self._late(deadline)
        finally:
            await end_task(job)
        if job.cancelled():
            raise RuntimeError(f"{self._called} cancelled itself")
        return job.result()

    def _late(self, deadline: "_Deadline") -> ScorerTimeout:
        return ScorerTimeout(f"{self._called} did not answer within {deadline.seconds:g} s")


def _with_details(scores: list[Score], more: Mapping[str, object]) -> list[Score]:
    return [structs.replace(score, details={**more, **score.details}) for score in scores]


def _with_unread(scores: list[Score]) -> list[Score]:
    """Marks missing scores as unread verdicts. A function that asks a judge may have turned an
    unreadable verdict into None.
    """
    return [
        structs.replace(score, details={UNREAD_JUDGE: True, **score.details})
        if score.reward is None and JUDGE not in score.details
        else score
        for score in scores
    ]


def _with_usage(scores: list[Score], used: UsageByModel) -> list[Score]:
    """Adds the tokens that were used, but that no score mentions, to the scores.

    A score does not mention its tokens if a function asks a judge and returns only a number. The
    scores of a group share the tokens.
    """
    usage_by_model: UsageByModel = {}
    for score in scores:
        usage_by_model = add_usages(usage_by_model, judge_usage(score.details))
    untold = {
        model: usage.less(usage_by_model.get(model, NOTHING)) for model, usage in used.items()
    }
    shares = [
        {
            model: usage.share(number, of=len(scores)).as_fields()
            for model, usage in untold.items()
            if usage != NOTHING
        }
        for number in range(len(scores))
    ]
    return [
        structs.replace(score, details={USED: share, **score.details}) if share else score
        for score, share in zip(scores, shares, strict=True)
    ]


class _Deadline:
    """The deadline of one call. It is extended by the time in which an engine that the call asks is
    down."""

    def __init__(self, seconds: float | None, use: EngineUse, on_extended: Callable[[float], None]):
        self.seconds = math.inf if seconds is None else seconds
        self._use = use
        self._on_extended = on_extended
        self._extended = 0.0
        self._end = asyncio.get_running_loop().time() + self.seconds

    def left(self) -> float:
        if (more := self._use.seconds - self._extended) > 0:
            self._extended += more
            self._on_extended(more)
        return self._end + self._extended - asyncio.get_running_loop().time()


class _InThread:
    """One call of a synchronous scorer, which may outlive its deadline."""

    def __init__(self, function: Callable[[Any], Any], argument: object):
        self._function = function
        self._argument = argument
        self.is_running = False
        """True from the call's beginning to its end. It stays false if the call was given up before
        it began."""

    def __call__(self) -> object:
        self.is_running = True
        try:
            return self._function(self._argument)
        finally:
            self.is_running = False


def by_position(
    scores: object, given: Sequence[object], left: Sequence[object], called: str
) -> list[object]:
    """Returns one score for each item of `given`, in the order of `given`.

    `left` is the list that the scorer was given, in its state after the call. The scorer may have
    sorted this list, and its scores are in the order of `left`.
    """
    checked = listed(scores, len(given), called)
    places = {id(each): place for place, each in enumerate(given)}
    by_place = {places.get(id(each)): score for each, score in zip(left, checked, strict=False)}
    if len(left) != len(given) or by_place.keys() != set(places.values()):
        raise NotAScore(
            f"{called} put other items into the list that it was given, or removed some, so that "
            "its scores have no places; change a copy of the list"
        )
    return [by_place[place] for place in range(len(given))]


def listed(scores: object, count: int, called: str) -> Sequence[object]:
    """Checks and returns the scores for several trajectories: one score for each, in their
    order.
    """
    if not isinstance(scores, Sequence) or isinstance(scores, str | bytes):
        raise NotAScore(
            f"{called} returned {shown(scores)}; return a list of {count}, one score for each of "
            "those it was given"
        )
    if len(scores) != count:
        raise NotAScore(
            f"{called} returned a list of {len(scores)}; return a list of {count}, one score for "
            "each of those it was given"
        )
    return scores


def shown(value: object) -> str:
    """Returns the value's `repr` for an error message, even if `repr` fails."""
    try:
        return repr(value)[:MAX_SHOWN]
    except Exception as error:
        return f"a {type(value).__name__} whose repr fails ({type(error).__name__})"


def checked(returned: object, called: str) -> Score:
    """Checks a scorer's return value, so that only a readable score is recorded.

    Raises `NotAScore`, whose message names the scorer as `called`.
    """
    score = as_score(returned, called)
    reward = read_reward(score.reward, called)
    if reward is not None and not math.isfinite(reward):
        raise NotAScore(
            f"{called} returned {reward}, which is not a reward; return a finite number"
        )
    for part in ("metrics", "reasons", "details"):
        _check_dict(part, getattr(score, part), called)
    return Score(
        reward,
        {_word(metric): _metric(metric, value, called) for metric, value in score.metrics.items()},
        {_word(what): result_text(why) for what, why in score.reasons.items()},
        _readable(score.details, called),
    )


def as_score(score: object, called: str) -> Score:
    """Converts a scorer's return value to a `Score`."""
    if isinstance(score, Score):
        return score
    if isinstance(score, Mapping):
        return _from_mapping(score, called)
    if score is None:
        return Score(None)
    reward = as_number(score)
    if reward is None:
        raise NotAScore(f"{called} returned {shown(score)}; return {ACCEPTED}")
    return Score(reward)


def read_reward(value: object, called: str, *, accepted: str = ACCEPTED) -> float | None:
    """Returns the number, or None for None. Refuses text, even if it spells a number."""
    reward = as_number(value)
    if reward is None and value is not None:
        raise NotAScore(
            f"{called} returned {shown(value)} as its score, which is not a number; "
            f"return {accepted}"
        )
    return reward


_NAMED = ("score", "reward", "is_score_valid", "metrics", "reason", "reasons", "details")


def _from_mapping(mapping: Mapping[Any, Any], called: str) -> Score:
    """Makes a `Score` from a dict with `score` (or `reward`), `metrics`, and `reason` or `reasons`.

    All other entries become details.
    """
    check_named(mapping, called)
    reward = mapping["score"] if "score" in mapping else mapping["reward"]
    parts = {part: mapping.get(part) or {} for part in ("metrics", "reasons", "details")}
    for part, value in parts.items():
        _check_dict(part, value, called)
    metrics, why = _split_metrics(parts["metrics"], called)
    reasons = {**why, **parts["reasons"]}
    if mapping.get("reason"):
        reasons = {"reason": mapping["reason"], **reasons}
    rest = {str(key): value for key, value in mapping.items() if key not in _NAMED}
    return Score(
        reward if mapping.get("is_score_valid", True) else None,
        metrics,
        reasons,
        {**rest, **parts["details"]},
    )


def check_named(scores: Mapping[Any, Any], called: str, *, accepted: str = ACCEPTED) -> None:
    """Raises `NotAScore` unless the dict has either a `score` or a `reward`."""
    if "score" in scores and "reward" in scores:
        raise NotAScore(f"{called} returned a dict with a 'score' and a 'reward'; return one")
    if "score" not in scores and "reward" not in scores:
        has = ", ".join(map(str, scores))[:MAX_SHOWN] or "nothing"
        raise NotAScore(
            f"{called} returned a dict without a 'score'; it has {has}; return {accepted}"
        )


def read_metric(metric: object, value: object, called: str) -> float:
    """Returns the number of a metric, which may be a dict with a `score`."""
    number = as_number(value.get("score") if isinstance(value, Mapping) else value)
    if number is None:
        raise NotAScore(
            f"{called} returned {shown(value)} as its metric {metric!r}, which is not a number"
        )
    return number


def _check_dict(part: str, value: object, called: str) -> None:
    if not isinstance(value, Mapping):
        raise NotAScore(f"{called} returned {part} that are not a dict: {shown(value)}")


def _split_metrics(
    metrics: Mapping[Any, Any], called: str
) -> tuple[dict[str, float], dict[str, str]]:
    """Splits metrics into numbers and reasons. A metric is a number, or a dict with `score` and
    `reason`.
    """
    numbers: dict[str, float] = {}
    reasons: dict[str, str] = {}
    for metric, value in metrics.items():
        numbers[str(metric)] = read_metric(metric, value, called)
        if isinstance(value, Mapping) and value.get("reason"):
            reasons[str(metric)] = str(value["reason"])
    return numbers, reasons


def _word(name: object) -> str:
    return result_text(str(name))


def _metric(metric: str, value: object, called: str) -> float:
    number = as_number(value)
    if number is None or not math.isfinite(number):
        what = shown(value) if number is None else number
        raise NotAScore(f"{called} returned {what} as its metric {metric!r}, which is not a number")
    return number


def _readable(details: Mapping[str, object], called: str) -> dict[str, object]:
    """Returns the details as the journal will return them later. Raises `NotAScore` if they cannot
    be recorded."""
    try:
        encoded = msgspec.msgpack.encode(details)
        score = msgspec.msgpack.decode(encoded)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise NotAScore(f"{called} returned details that are not JSON: {error}") from None
    if len(encoded) > MAX_RESULT:
        raise NotAScore(f"{called} returned {len(encoded):,} bytes of details")
    if not isinstance(score, dict) or not all(isinstance(key, str) for key in score):
        raise NotAScore(f"{called} returned details that are not an object with names")
    return score


# --- what a scorer has to be


FOREIGN = {"completions": "trl", "solution_str": "verl"}
"""Arguments that only the reward functions of other frameworks have."""


def check_scorer(function: object, *, is_group: bool, file: str = "FILE.py") -> None:
    """Raises `UsageError` if the value cannot be called as a scorer, or would not return a score.
    `file` is the file that the error names for the function."""
    wants = GROUP if is_group else SINGLE
    if inspect.iscoroutine(function):
        function.close()
        raise UsageError(
            f"the scorer was called already: give the function itself, {function.__name__}"
        )
    if not callable(function):
        raise UsageError(f"scorer is a function of one argument, not {function!r:.100}")
    if isinstance(function, type):
        raise UsageError(f"{function.__name__} is a class, and no scorer; give an instance")
    name = function_name(function)
    if _yields(function):
        raise UsageError(f"scorer {name} yields; a scorer returns its score")
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # Some built-in callables have no signature.
    for argument, framework in FOREIGN.items():
        parameter = signature.parameters.get(argument)
        if parameter is not None and parameter.default is parameter.empty:
            raise UsageError(
                f"{name}({', '.join(signature.parameters)}) is a reward function of {framework}: "
                f"write --scorer {framework}:{file}:{name}"
            )
    try:
        signature.bind(None)
    except TypeError as error:
        raise UsageError(
            f"scorer {name}({', '.join(signature.parameters)}): {error}; a scorer takes {wants}"
        ) from None


def _yields(function: object) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    called = function if inspect.isroutine(function) else getattr(function, "__call__", None)  # noqa: B004
    return inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called)
