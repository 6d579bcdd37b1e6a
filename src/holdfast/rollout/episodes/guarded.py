"""Calls a user's environment with a deadline and in a thread, classifies its errors once, and
checks that its results can be recorded."""

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.records.errors import (
    EnvironmentBroken,
    HoldfastError,
    JournalCorrupt,
    ToolSaysNo,
    UsageError,
)
from holdfast.records.failure import as_exception
from holdfast.records.foreign import headline_of
from holdfast.rollout.episodes.environment import (
    Environment,
    Observation,
    Recovery,
    SnapshotGone,
    check_observation,
)
from holdfast.rollout.replay.session import AttemptState, is_accident
from holdfast.rollout.threads.contain import contain
from holdfast.rollout.threads.dedicated import CallTimedOut, OwnThread
from holdfast.rollout.tools.tool import result_text

CLOSE_SECONDS = 30.0
MAX_SNAPSHOT_BYTES = 256 * 1024 * 1024


class NotAnObservation(UsageError, TypeError):
    """The value that `reset` or `step` returned cannot be recorded."""


class GuardedEnvironment:
    """Calls an environment. An error of the environment fails the attempt, so that a rollout cannot
    hide the error by catching it."""

    def __init__(self, state: AttemptState, environment: Environment):
        self.opened = False
        """Whether there is anything to close."""
        self.thread = OwnThread(f"environment {environment.name}")
        self._state = state
        self._environment = environment

    async def prepare(self) -> None:
        if type(self._environment).prepare is not Environment.prepare:
            await self._require("prepare", self._environment.prepare)

    async def reset(self, seed: int) -> Observation:
        self.opened = True
        seen = await self._require("reset", self._environment.reset, seed=seed)
        return self._check("reset", seen)

    async def step(self, action: str) -> Observation:
        try:
            seen = await self._call("step", self._environment.step, action)
        except ToolSaysNo as no:
            return Observation(result_text(str(no)), error=type(no).__name__)
        return self._check("step", seen)

    async def snapshot(self) -> bytes:
        state = await self._require("snapshot", self._environment.snapshot)
        if not isinstance(state, bytes):
            error = TypeError(f"it wants to return bytes, not {type(state).__name__}")
            raise self.break_attempt("snapshot", error)
        if len(state) > MAX_SNAPSHOT_BYTES:
            excess = f"{len(state):,} bytes are more than {MAX_SNAPSHOT_BYTES:,}"
            raise self.break_attempt("snapshot", ValueError(f"{excess}; keep parts in self.blobs"))
        return state

    async def restore(self, state: bytes) -> None:
        self.opened = True
        await self._require("restore", self._environment.restore, state)

    async def attach(self, cuts: int) -> bool:
        """Takes over the environment of an earlier process if it is still alive. Returns whether it
        is."""
        self._environment.cuts = cuts
        attached = bool(await self._require("attach", self._environment.attach))
        self.opened = self.opened or attached
        return attached

    async def is_current(self) -> None:
        if self._environment.is_world:
            await self._require("is_current", self._environment.is_current)

    async def close(self) -> None:
        """Closes the environment. An error does not fail the attempt: it is raised, and the caller
        records it."""
        limit = min(CLOSE_SECONDS, self._environment.timeout)
        await self._within_timeout("close", self._environment.close, limit=limit, behind=True)

    def break_attempt(self, what: str, error: Exception) -> BaseException:
        root = as_exception(error)
        if isinstance(root, HoldfastError) and not isinstance(root, ToolSaysNo):
            return self._state.fail(root)
        message = f"{self._environment.name}.{what} broke: {headline_of(root)}"
        return self._state.fail(EnvironmentBroken(message), self._state.step)

    async def _require(self, what: str, method: Callable[..., Any], *args: Any, **kw: Any) -> Any:
        """Calls a method of the environment. If the method raises `ToolSaysNo`, the environment
        counts as broken."""
        try:
            return await self._call(what, method, *args, **kw)
        except ToolSaysNo as no:
            raise self.break_attempt(what, no) from no

    async def _call(self, what: str, method: Callable[..., Any], *args: Any, **kw: Any) -> Any:
        try:
            return await self._within_timeout(what, lambda: method(*args, **kw), of=method)
        except (ToolSaysNo, JournalCorrupt, SnapshotGone):
            raise
        except HoldfastError as error:
            if is_accident(error):
                self._state.fail(error)
            raise
        except Exception as error:
            raise self.break_attempt(what, error) from error

    async def _within_timeout(
        self,
        what: str,
        call: Callable[[], Any],
        *,
        of: Callable[..., Any] | None = None,
        limit: float | None = None,
        behind: bool = False,
    ) -> Any:
        limit = self._environment.timeout if limit is None else limit
        late = f"{self._environment.name}.{what} was not done within {limit:g} s"
        if inspect.iscoroutinefunction(of or call):
            return await self._await_within(call(), limit, late)
        try:
            if self._environment.inline:
                outcome = call()
            else:
                outcome = await self.thread.run(call, timeout=limit, behind=behind)
        except CallTimedOut as error:
            raise EnvironmentBroken(late) from error
        if isinstance(outcome, Awaitable):
            return await self._await_within(outcome, limit, late)
        return outcome

    async def _await_within(self, awaitable: Awaitable[Any], limit: float, late: str) -> Any:
        try:
            async with asyncio.timeout(limit) as deadline:
                return await contain(awaitable)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise EnvironmentBroken(late) from error

    def _check(self, what: str, seen: object) -> Observation:
        try:
            return check_observation(seen)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            message = f"{self._environment.name}.{what}: {error}"
            raise self._state.fail(NotAnObservation(message), self._state.step) from None


def check_usable(environment: object) -> None:
    """Raises an error if the environment cannot be opened, before any of its methods is called."""
    if isinstance(environment, type) and issubclass(environment, Environment):
        raise UsageError(f"t.env wants an instance: {environment.__name__}()")
    if environment is None:
        raise UsageError(
            "None is not a holdfast.Environment: the function that makes it returns none"
        )
    if not isinstance(environment, Environment):
        raise UsageError(f"{environment!r:.200} is not a holdfast.Environment: make it a subclass")
    if inspect.isroutine(getattr(type(environment), "tools", None)):
        raise UsageError(f"{environment.name}.tools is a method: put @property above it")
    limit: object = environment.timeout
    if not isinstance(limit, int | float) or isinstance(limit, bool) or not 0 < limit < math.inf:
        raise UsageError(
            f"{environment.name}.timeout has to be a number of seconds above 0, not {limit!r:.200}"
        )
    if not can_be_called(environment.reset, seed=0):
        raise UsageError(
            f"{environment.name}.reset must take the keyword seed: def reset(self, *, seed)"
        )
    if not can_be_called(environment.step, ""):
        raise UsageError(f"{environment.name}.step must take the action: def step(self, action)")


def can_be_called(method: Callable[..., object], *args: object, **kw: object) -> bool:
    try:
        inspect.signature(method).bind(*args, **kw)
    except TypeError:
        return False
    except ValueError:  # Compiled code may have no signature.
        return True
    return True


def identity_of(environment: Environment) -> str:
    identity: object = environment.identity
    if not isinstance(identity, str):
        text = "a method" if inspect.isroutine(identity) else f"{identity!r:.200}"
        raise UsageError(
            f"{environment.name}.identity has to be a string, and a property, not {text}"
        )
    return identity


def recovery_of(environment: Environment) -> Recovery:
    try:
        return Recovery(environment.recovery)
    except ValueError:
        raise UsageError(
            f"{environment.name}: {environment.recovery!r} is not a recovery level; there are "
            + ", ".join(Recovery)
        ) from None
