"""CurrentCode: for which trajectory, attempt and step the code runs that asks.

One context variable: an asyncio task, and those that it makes, inherit the value that was current
when they were made. Sessions are held weakly: a connection that is opened in a step keeps the
step's context for its own life.
"""

import weakref
from contextvars import Context, ContextVar
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

if TYPE_CHECKING:
    from holdfast.records.trajectory import TrajectoryKey
    from holdfast.rollout.replay.nested_steps import StepScope
    from holdfast.rollout.replay.session import Session
    from holdfast.rollout.replay.unawaited import PendingSteps


class CurrentCode(Struct, frozen=True):
    """Nothing is set outside of a trajectory."""

    trajectory: str = ""
    session: "weakref.ref[Session] | None" = None
    step: "StepScope | None" = None
    """The step that runs this code; None in the rollout itself."""
    pending: "PendingSteps | None" = None
    """The rollout's steps that were called and have not begun."""


_current: ContextVar[CurrentCode] = ContextVar("holdfast_code", default=CurrentCode())  # noqa: B039  # frozen


def current_code() -> CurrentCode:
    return _current.get()


def code_in(context: Context) -> CurrentCode:
    """The value in another task's context."""
    return context.get(_current, CurrentCode())


def change_current(**fields: Any) -> None:
    """Replaces fields for this asyncio task and the tasks that it makes from here on."""
    _current.set(structs.replace(_current.get(), **fields))


def enter_trajectory(key: "TrajectoryKey") -> None:
    """This task works on the trajectory from here on."""
    change_current(trajectory=str(key))


def enter_attempt(session: "Session") -> None:
    """This task works on the attempt from here on."""
    change_current(session=weakref.ref(session))
