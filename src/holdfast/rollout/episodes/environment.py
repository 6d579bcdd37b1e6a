"""Environment: what a policy acts in, and how it comes back after a crash.

A user's environment is a class with `reset`, `step` and `close`, each either plain or async. Plain
ones run in a thread that belongs to the environment, always the same one, so that they never block
the run and may hold what is bound to a thread.
"""

import math
from collections.abc import Awaitable, Mapping, Sequence
from enum import StrEnum
from typing import Protocol

import msgspec
from msgspec import Struct, structs

from holdfast.records.errors import UsageError
from holdfast.records.step import EnvironmentStepped, ToolResult
from holdfast.rollout.tools.tool import Function, Tool, result_text

DEFAULT_TIMEOUT = 600.0


class Recovery(StrEnum):
    """How an environment comes back when the process that held it is gone."""

    SNAPSHOT = "snapshot"
    """The last snapshot is restored, and what was done since is done again and compared."""
    REPLAY = "replay"
    """It is reset with the same seed, everything is done again, and every answer is compared with
    the recorded one."""
    STATELESS = "stateless"
    """There is nothing to bring back: it is only reset."""
    RESTART = "restart"
    """It cannot come back: the trajectory starts anew."""


class Observation(Struct, frozen=True, gc=False):
    """An environment's answer. It is recorded before anyone sees it."""

    text: str
    """The text that the policy sees."""
    reward: float = 0.0
    done: bool = False
    """The episode is over."""
    truncated: bool = False
    """A limit of the environment's own ended it."""
    info: Mapping[str, object] = {}
    """Anything else for the rollout: numbers, strings, bytes, lists, dicts."""
    error: str = ""
    """Why the action was rejected (see `ToolSaysNo`); set by Holdfast."""
    path: str = ""
    """The step that it was recorded as; set by Holdfast."""

    @property
    def ok(self) -> bool:
        return not self.error

    @property
    def over(self) -> bool:
        return self.done or self.truncated


def check_observation(seen: object) -> Observation:
    """What user code returned, as it can be recorded; `TypeError` or `ValueError` if it cannot."""
    if isinstance(seen, str):
        seen = Observation(seen)
    if not isinstance(seen, Observation):
        raise TypeError(
            f"it wants to return an Observation or a string, not {seen!r:.200}; return "
            "Observation(text, reward=…, done=…)"
        )
    reward = as_number(seen.reward)
    if reward is None or not math.isfinite(reward):
        raise ValueError(f"reward {seen.reward!r} is no finite number")
    if seen.info:
        _check_info(seen.info)
    return structs.replace(
        seen,
        text=result_text(seen.text),
        reward=reward,
        done=_flag("done", seen.done),
        truncated=_flag("truncated", seen.truncated),
        error="",
    )


def _flag(name: str, value: object) -> bool:
    """True or False, also as numpy or torch have it. Text is neither: "no" would be true."""
    if as_number(value) is None:
        raise ValueError(f"{name} is True or False, not {value!r:.100}")
    return bool(value)


def _check_info(info: object) -> None:
    try:
        msgspec.msgpack.decode(msgspec.msgpack.encode(info))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise TypeError(f"info cannot be recorded: {error}") from error


def as_number(value: object) -> float | None:
    """A number of any library as a float, one too large for it as infinity; None for anything
    else."""
    # numpy's and torch's scalars, Decimal, Fraction; text has no __float__.
    if not hasattr(value, "__float__"):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # type: ignore[operator]
    except (TypeError, ValueError, RuntimeError):  # Arrays of several numbers have one, too.
        return None


class Blobs(Protocol):
    """Where large parts of snapshots are kept, each content once."""

    async def put_blob(self, body: bytes) -> bytes:
        """Durable when it returns; the digest by which `get_blob` finds it."""
        ...

    async def get_blob(self, digest: bytes) -> bytes: ...


Seen = Observation | str
"""A string is an observation without a reward."""


class Environment:
    """Override `reset` and `step` (plain or async), and what else is needed.

    - An instance serves one attempt of one trajectory. Making one is cheap and opens nothing: on
      replay it may never be reset.
    - `reset` and `restore` may come at any time, and begin anew.
    - A tool may return an `Observation`, too: its text is shown, its reward and end are kept.
    - What `step` or a tool raises: `ToolSaysNo` rejects the action, and nothing happened;
      anything else means that the environment broke, and the attempt is tried again.
    - `close` is called exactly once if anything was opened, also after a failure.
    """

    recovery: Recovery | str = Recovery.REPLAY
    timeout: float = DEFAULT_TIMEOUT
    """Seconds that any one call may take."""
    earns: bool | None = None
    """Whether its steps or tools give rewards; by default, whether it defines `step`."""
    inline: bool = False
    """True: its plain methods and tools take microseconds and never wait, so that they may run on
    the event loop itself. One that hangs there holds up the whole run."""
    blobs: Blobs
    """Set before anything is called."""

    @property
    def name(self) -> str:
        return type(self).__name__

    @property
    def identity(self) -> str:
        """Settings that make it another environment: with others, its steps are not replayed."""
        return ""

    @property
    def tools(self) -> Sequence[Tool | Function]:
        """Tools that act in this environment; read once it is prepared, and before it is reset."""
        return ()

    def prepare(self) -> Awaitable[None] | None:
        """Called before `tools` is read, on replay, too: finds out which tools there are, and opens
        nothing that has to be closed."""
        return None

    def reset(self, *, seed: int) -> Seen | Awaitable[Seen]:
        """Begins an episode. The same seed begins the same one."""
        raise UsageError(f"{type(self).__name__} defines no `reset(self, *, seed)`")

    def step(self, action: str) -> Seen | Awaitable[Seen]:
        """Runs the policy's action."""
        raise UsageError(f"{type(self).__name__} defines no `step(self, action)`")

    def close(self) -> Awaitable[None] | None:
        """Lets go of everything."""
        return None

    def snapshot(self) -> bytes | Awaitable[bytes]:
        """All of its state, in an encoding of its own. Asked for between turns."""
        raise UsageError(f"{type(self).__name__} recovers by snapshot, but defines no `snapshot`")

    def restore(self, state: bytes) -> Awaitable[None] | None:
        """Called instead of `reset`: it is again as it was when `state` was taken."""
        raise UsageError(f"{type(self).__name__} recovers by snapshot, but defines no `restore`")


def earns_rewards(environment: Environment) -> bool:
    if environment.earns is not None:
        return environment.earns
    return type(environment).step is not Environment.step


# --- records


def step_of(
    seen: Observation, *, path: str, fingerprint: bytes, action: str, episode: str, seconds: float
) -> EnvironmentStepped:
    return EnvironmentStepped(
        path=path,
        fingerprint=fingerprint,
        action=action,
        observation=seen.text,
        reward=seen.reward,
        done=seen.done,
        environment=episode,
        truncated=seen.truncated,
        error=seen.error,
        info=msgspec.msgpack.encode(seen.info) if seen.info else b"",
        seconds=seconds,
    )


def observation_of(step: EnvironmentStepped) -> Observation:
    info = msgspec.msgpack.decode(step.info) if step.info else {}
    return Observation(
        step.observation, step.reward, step.done, step.truncated, info, step.error, step.path
    )


def answer_of(result: ToolResult) -> Observation:
    """The answer of an environment's tool."""
    reward = result.reward or 0.0
    return Observation(
        result.content, reward, result.done, result.truncated, error=result.error, path=result.path
    )
