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
    """The snapshot does not exist any more. An older snapshot is restored instead."""


class Recovery(StrEnum):
    """The ways to restore an environment whose process is gone."""

    SNAPSHOT = "snapshot"
    """The last snapshot is restored. Later actions are done again, and each answer is compared with
    the recorded answer."""
    REPLAY = "replay"
    """The environment is reset with the same seed, and all actions are done again. Every answer is
    compared with the recorded one."""
    STATELESS = "stateless"
    """The environment has no state to restore, so it is only reset."""
    RESTART = "restart"
    """The environment cannot be restored, so the trajectory starts anew."""


class Observation(Struct, frozen=True, gc=False):
    """An environment's answer to an action. It is recorded before the rollout gets it."""

    text: str
    """The text that the policy sees."""
    reward: float = 0.0
    done: bool = False
    """Whether the episode is over."""
    truncated: bool = False
    """Whether a limit of the environment itself ended the episode."""
    info: Mapping[str, object] = {}
    """Other data for the rollout, made of numbers, strings, bytes, lists and dicts."""
    error: str = ""
    """The class name of the error with which the environment rejected the action (see
    `ToolSaysNo`), or "". Set by Holdfast."""
    path: str = ""
    """The path of the step that recorded this observation. Set by Holdfast."""

    @property
    def ok(self) -> bool:
        return not self.error

    @property
    def over(self) -> bool:
        return self.done or self.truncated


def check_observation(seen: object) -> Observation:
    """Returns an observation that can be recorded, made from what `reset`, `step` or a tool
    returned. Raises `TypeError` or `ValueError` if that is impossible."""
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
    """Converts a flag to True or False. Accepts numbers and booleans of any library. Raises
    `ValueError` for text, because bool("no") is True."""
    if as_number(value) is None:
        raise ValueError(f"{name} is True or False, not {value!r:.100}")
    return bool(value)


def _check_info(info: object) -> None:
    try:
        msgspec.msgpack.decode(msgspec.msgpack.encode(info))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise TypeError(f"info cannot be recorded: {error}") from error


def as_number(value: object) -> float | None:
    """Converts a number of any library to a float, or returns None if `value` is not a number. A
    number that is too large becomes infinity."""
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
    """A store for large parts of snapshots, which keeps equal contents only once."""

    async def put_blob(self, body: bytes) -> bytes:
        """Stores the body durably. Returns its digest, with which `get_blob` finds it."""
        ...

    async def get_blob(self, digest: bytes) -> bytes: ...


Seen = Observation | str
"""An observation. A string stands for an observation without a reward."""


class Environment:
    """The base class of environments. Override `reset` and `step` (plain or async), and other
    methods if needed.

    - An instance serves one attempt of one trajectory. Creating an instance is cheap and opens
      nothing, because on replay it may never be reset.
    - `reset` and `restore` may be called at any time, and begin anew.
    - A tool may return an `Observation`, too. The policy sees its text. Its reward is added to the
      episode, and its end ends the episode.
    - `step` or a tool may raise `ToolSaysNo`, which means that the action was rejected and had no
      effect. Any other error means that the environment broke, and the attempt is tried again.
    - `close` is called exactly once if anything was opened, also after a failure.
    """

    recovery: Recovery | str = Recovery.REPLAY
    timeout: float = DEFAULT_TIMEOUT
    """The most seconds that a call of a method may take."""
    earns: bool | None = None
    """Whether its steps or tools give rewards. None means that they do if the class defines `step`.
    """
    inline: bool = False
    """If True, its plain methods and tools take microseconds and never wait, so they run on the
    event loop itself. A call that hangs there holds up the whole run."""
    blobs: Blobs
    """The store for large parts of snapshots. Set before any call."""
    is_world = False
    """Whether it is a world: a machine that outlives the process that created it."""
    cuts = 0
    """How often recorded actions of this environment were turned into history so far. Set before
    `reset` and `restore`."""
    last_action = ""
    """The path of the last action in this environment. Set before `snapshot`."""
    is_lost = False
    """Whether a call was interrupted, so that the environment's state is unknown. Set before
    `close`."""

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
        """Finds out which tools there are, without opening anything that has to be closed. Called
        before `tools` is read, also on replay."""
        return None

    def reset(self, *, seed: int) -> Seen | Awaitable[Seen]:
        """Begins an episode. The same seed begins the same episode."""
        raise UsageError(f"{type(self).__name__} defines no `reset(self, *, seed)`")

    def step(self, action: str) -> Seen | Awaitable[Seen]:
        """Does the policy's action and returns the answer."""
        raise UsageError(f"{type(self).__name__} defines no `step(self, action)`")

    def close(self) -> Awaitable[None] | None:
        """Releases all resources."""
        return None

    def snapshot(self) -> bytes | Awaitable[bytes]:
        """Returns the whole state, encoded by the environment. Called between turns."""
        raise UsageError(f"{type(self).__name__} recovers by snapshot, but defines no `snapshot`")

    def restore(self, state: bytes) -> Awaitable[None] | None:
        """Puts the environment into the state of a snapshot. Called instead of `reset`. May raise
        `SnapshotGone`."""
        raise UsageError(f"{type(self).__name__} recovers by snapshot, but defines no `restore`")

    # --- for Holdfast's own environments

    def bind(self, session: "Session", path: str) -> None:
        """Connects the environment with its attempt. `path` is the step that opens the environment.
        Called once, before any other method."""
        del path
        if getattr(self, "blobs", None) is not None:
            raise UsageError(f"{self.name} is in use already: make a new instance for each attempt")
        self.blobs = session.blobs

    async def attach(self) -> bool:
        """Takes over the environment of an earlier process if it is still alive. Returns whether it
        is.

        Called before `restore`, and only if all recorded actions took effect in that environment.
        """
        return False

    async def is_current(self) -> None:
        """Tells the environment that it has reached the state that the record describes."""

    async def wants_snapshot(self, actions: int, seconds: float) -> bool:
        """Returns whether to take a snapshot now. `actions` were done since the last snapshot, and
        took `seconds` together."""
        del actions, seconds
        return True

    def is_alike(self, recorded: str, now: str) -> bool:
        """Returns whether two answers to the same action, `recorded` and `now`, count as equal."""
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
    """Converts the recorded result of an environment's tool to an observation."""
    reward = result.reward or 0.0
    return Observation(
        result.content, reward, result.done, result.truncated, error=result.error, path=result.path
    )
