"""Environment: the world in which a policy acts, and how it is restored after a crash.

A user's environment is a class with the methods `reset`, `step` and `close`, each plain or async.
Plain methods run in a thread that belongs to the environment. It is always the same thread, so
these methods never block the run and may hold objects that are bound to a thread.
"""

import math
from collections.abc import Awaitable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import Struct, structs

from holdfast.records.errors import EnvironmentBroken, UsageError
from holdfast.records.step import EnvironmentStepped, ToolResult
from holdfast.rollout.tools.tool import Function, Tool, result_text

if TYPE_CHECKING:
    from holdfast.rollout.replay.session import Session

DEFAULT_TIMEOUT = 600.0


class SnapshotGone(EnvironmentBroken):
    """The snapshot does not exist any more. An older one is restored."""


class Recovery(StrEnum):
    """How an environment is restored when its process is gone."""

    SNAPSHOT = "snapshot"
    """The last snapshot is restored. Later actions are done again, and their answers compared."""
    REPLAY = "replay"
    """The environment is reset with the same seed, and all actions are done again. Every answer is
    compared with the recorded one."""
    STATELESS = "stateless"
    """The environment has no state to restore, so it is only reset."""
    RESTART = "restart"
    """The environment cannot be restored, so the trajectory starts anew."""


class Observation(Struct, frozen=True, gc=False):
    """An environment's answer. It is recorded before anyone sees it."""

    text: str
    """The text that the policy sees."""
    reward: float = 0.0
    done: bool = False
    """Whether the episode is over."""
    truncated: bool = False
    """Whether a limit of the environment itself ended the episode."""
    info: Mapping[str, object] = {}
    """Other data for the rollout: numbers, strings, bytes, lists, dicts."""
    error: str = ""
    """Why the action was rejected (see `ToolSaysNo`); set by Holdfast."""
    path: str = ""
    """The path of the step that recorded it. Set by Holdfast."""

    @property
    def ok(self) -> bool:
        return not self.error

    @property
    def over(self) -> bool:
        return self.done or self.truncated


def check_observation(seen: object) -> Observation:
    """Returns the result of user code in a form that can be recorded. Raises `TypeError` or
    `ValueError` if that is impossible."""
    if isinstance(seen, str):
        seen = Observation(seen)
    if not isinstance(seen, Observation):
        raise TypeError(
            f"it wants to return an Observation or a string, not {seen!r:.200}; return "
            "Observation(text, reward=…, done=…)"
        )
    reward = as_number(seen.reward)
    if reward is None or not math.isfinite(reward):
        raise ValueError(f"reward {seen.reward!r} is not a finite number")
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
    """Returns True or False, also for values of numpy or torch. Refuses text, because "no" would be
    true."""
    if as_number(value) is None:
        raise ValueError(f"{name} is True or False, not {value!r:.100}")
    return bool(value)


def _check_info(info: object) -> None:
    try:
        msgspec.msgpack.decode(msgspec.msgpack.encode(info))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise TypeError(f"info cannot be recorded: {error}") from error


def as_number(value: object) -> float | None:
    """Returns a number of any library as a float. A number that is too large becomes infinity.
    Returns None for anything else."""
    # Scalars of numpy and torch, Decimal and Fraction have this method. Text does not.
    if not hasattr(value, "__float__"):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # type: ignore[operator]
    except (TypeError, ValueError, RuntimeError):
        # Arrays of several numbers have this method, too.
        return None


class Blobs(Protocol):
    """A store for large parts of snapshots, which keeps each content once."""

    async def put_blob(self, body: bytes) -> bytes:
        """Returns the digest by which `get_blob` finds the body. The body is durable by then."""
        ...

    async def get_blob(self, digest: bytes) -> bytes: ...


Seen = Observation | str
"""An observation. A string stands for an observation without a reward."""


class Environment:
    """The base class of environments. Override `reset` and `step` (plain or async), and more if
    needed.

    - An instance serves one attempt of one trajectory. Making one is cheap and opens nothing: on
      replay it may never be reset.
    - `reset` and `restore` may be called at any time, and begin anew.
    - A tool may return an `Observation`, too. The policy sees its text; its reward and end count.
    - `step` or a tool may raise `ToolSaysNo`. Then the action is rejected and had no effect. Any
      other error means that the environment broke, and the attempt is tried again.
    - `close` is called exactly once if anything was opened, also after a failure.
    """

    recovery: Recovery | str = Recovery.REPLAY
    timeout: float = DEFAULT_TIMEOUT
    """The most seconds that one call may take."""
    earns: bool | None = None
    """Whether its steps or tools give rewards. None means: yes if it defines `step`."""
    inline: bool = False
    """If True, its plain methods and tools take microseconds and never wait, so they run on the
    event loop itself. A call that hangs there holds up the whole run."""
    blobs: Blobs
    """The store for large parts of snapshots. Set before any call."""
    is_world = False
    """Whether it is a world: a machine that outlives the process which made it."""
    cuts = 0
    """How often the record of its actions was cut so far. Set before `reset` and `restore`."""
    last_action = ""
    """The path of its last action. Set before `snapshot`."""
    is_lost = False
    """Whether a call was cut off half-way, so that its state is unknown. Set before `close`."""

    @property
    def name(self) -> str:
        return type(self).__name__

    @property
    def identity(self) -> str:
        """The environment's settings as a text. If the text changes, recorded steps are not
        replayed."""
        return ""

    @property
    def tools(self) -> Sequence[Tool | Function]:
        """Tools that act in this environment. Read after `prepare` and before `reset`."""
        return ()

    def prepare(self) -> Awaitable[None] | None:
        """Called before `tools` is read, also on replay. Finds out which tools there are, and opens
        nothing that would have to be closed."""
        return None

    def reset(self, *, seed: int) -> Seen | Awaitable[Seen]:
        """Begins an episode. The same seed begins the same episode."""
        raise UsageError(f"{type(self).__name__} defines no `reset(self, *, seed)`")

    def step(self, action: str) -> Seen | Awaitable[Seen]:
        """Runs the policy's action."""
        raise UsageError(f"{type(self).__name__} defines no `step(self, action)`")

    def close(self) -> Awaitable[None] | None:
        """Releases all resources."""
        return None

    def snapshot(self) -> bytes | Awaitable[bytes]:
        """Returns the whole state, in the environment's own encoding. Called between turns."""
        raise UsageError(f"{type(self).__name__} recovers by snapshot, but defines no `snapshot`")

    def restore(self, state: bytes) -> Awaitable[None] | None:
        """Called instead of `reset`. Puts the environment back into the state of the snapshot. May
        raise `SnapshotGone`."""
        raise UsageError(f"{type(self).__name__} recovers by snapshot, but defines no `restore`")

    # --- for Holdfast's own environments

    def bind(self, session: "Session", path: str) -> None:
        """Called once, with the attempt and the path of the opening, before any other call."""
        del path
        if getattr(self, "blobs", None) is not None:
            raise UsageError(f"{self.name} is in use already: make a new instance for each attempt")
        self.blobs = session.blobs

    async def attach(self) -> bool:
        """Called before `restore` if all recorded actions took effect in the last environment.
        Returns whether that environment is alive and goes on."""
        return False

    async def is_current(self) -> None:
        """Called when the environment has reached the state that the record describes."""

    async def wants_snapshot(self, actions: int, seconds: float) -> bool:
        """Returns whether to take a snapshot, after this many actions since the last one, which
        took this many seconds."""
        del actions, seconds
        return True

    def is_alike(self, recorded: str, now: str) -> bool:
        """Returns whether two texts of the same action mean the same."""
        return recorded == now


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
    """Returns the answer of an environment's tool as an observation."""
    reward = result.reward or 0.0
    return Observation(
        result.content, reward, result.done, result.truncated, error=result.error, path=result.path
    )
