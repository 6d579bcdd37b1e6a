"""CurrentCode: the trajectory, attempt and step for which the present code runs.

It is kept in one context variable. An asyncio task inherits the value that was current when the
task was created. Sessions are referenced weakly: a connection that is opened in a step keeps the
step's context, and would otherwise keep the session, too.
"""

import weakref
from contextvars import Context, ContextVar
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from holdfast.records.errors import ToolSaysNo, UsageError
from holdfast.rollout.replay.budget import Budget

if TYPE_CHECKING:
    from holdfast.records.trajectory import TrajectoryKey
    from holdfast.rollout.replay.session import Session
    from holdfast.rollout.replay.unawaited import PendingSteps


class CurrentCode(Struct, frozen=True):
    """The value of the context variable. Outside of a trajectory, all fields are empty."""

    trajectory: str = ""
    session: "weakref.ref[Session] | None" = None
    step: "StepScope | None" = None
    """The step whose tool, environment or function this code is, or None in the rollout itself."""
    pending: "PendingSteps | None" = None
    """The steps that the rollout has called and that have not begun."""


CURRENT: ContextVar[CurrentCode] = ContextVar("holdfast_code", default=CurrentCode())  # noqa: B039  # frozen


def code_in(context: Context) -> CurrentCode:
    """Returns the value in another task's context."""
    return context.get(CURRENT, CurrentCode())


def change_current(**fields: Any) -> None:
    """Replaces fields for this asyncio task and for the tasks that it creates from now on."""
    CURRENT.set(structs.replace(CURRENT.get(), **fields))


def enter_trajectory(key: "TrajectoryKey") -> None:
    """Assigns this task to the trajectory from now on."""
    change_current(trajectory=str(key))


def enter_attempt(session: "Session") -> None:
    """Assigns this task to the attempt from now on."""
    change_current(session=weakref.ref(session))


class StepScope:
    """The scope of user code that runs within the step at `path`: a tool, an environment, or a
    function given to `t.value`. It is entered whenever that code runs.

    On replay the code does not run, because its result is recorded. If the steps that the code
    takes were counted with those of the conversation, all later steps would have other paths on
    replay. So the code's steps get paths below the step that runs the code, as the steps of a
    branch do.
    """

    __slots__ = ("_before", "_budget", "_ordinal", "_path", "_session", "in_environment", "scope")

    def __init__(self, session: "Session", path: str, *, in_environment: bool = False):
        # A weak reference, because a connection that is opened in a step keeps the step's context.
        self._session = weakref.ref(session)
        self.in_environment = in_environment
        """Whether the code belongs to an environment. Such code runs again when the environment is
        restored. By then the conversation is longer and more is spent."""
        self.scope = f"{path}."
        self._path = path
        self._ordinal = 0
        self._budget: Budget | None = None
        self._before: StepScope | None = None

    @property
    def session(self) -> "Session | None":
        """The attempt, or None if it is over and was garbage-collected."""
        return self._session()

    @property
    def budget(self) -> Budget:
        """The amounts that were spent inside the step so far. When the step is done, the
        conversation counts these amounts from the records, as on replay."""
        if self._budget is None:
            self._budget = Budget()
        return self._budget

    def next_path(self) -> str:
        self._ordinal += 1
        return f"{self.scope}0.{self._ordinal - 1}"

    async def __aenter__(self) -> None:
        self._before = CURRENT.get().step
        change_current(step=self)
        if (session := self.session) is not None:
            session.log.mark_running(self._path)

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Not reset with its token: an unfinished coroutine is closed in another context, where
        # another step may be current.
        if CURRENT.get().step is self:
            change_current(step=self._before)
        session = self.session
        if session is not None and (kind is None or issubclass(kind, ToolSaysNo)):
            await session.log.cut_below(self._path)


def check_own_attempt(session: "Session") -> None:
    """Raises `UsageError` if the present code belongs to another attempt than `session`. Its steps
    would be recorded for an attempt that never made them."""
    reference = CURRENT.get().session
    current = None if reference is None else reference()
    if current is None or current is session:
        return
    owner = "an earlier attempt" if current.name == session.name else session.name
    raise UsageError(
        f"the `t` that is used in the rollout of {current.name} is the context of {owner}; all "
        "trajectories share a processor, so nothing of one may be kept on it"
    )


def is_in_step(session: "Session") -> bool:
    """Returns whether the present code runs within a step of this attempt."""
    step = CURRENT.get().step
    return step is not None and step.session is session


def enclosing_step(session: "Session", scope: str) -> StepScope | None:
    """Returns the step within which the present code runs, or None if there is none or if the
    conversation of `scope` began inside that step. Raises the errors of `check_own_attempt`."""
    check_own_attempt(session)
    step = CURRENT.get().step
    if step is None or step.session is not session or scope.startswith(step.scope):
        return None
    return step


def check_not_in_step(session: "Session", scope: str, what: str) -> None:
    """Raises `UsageError` if the present code runs within a step and uses a conversation that began
    outside. On replay that code does not run, so the conversation would differ."""
    if enclosing_step(session, scope) is not None:
        raise UsageError(
            f"{what} in a tool, an environment or a function given to t.value: on replay that code "
            "does not run, and the conversation would be another; use a conversation of its own, "
            "as in t.sub(…)"
        )


def check_not_in_environment(session: "Session", scope: str) -> None:
    """Raises `UsageError` if an environment's code branches a conversation that began outside. The
    conversation would be longer when the code runs again to restore the environment."""
    inside = enclosing_step(session, scope)
    if inside is not None and inside.in_environment:
        raise UsageError(
            "t.branch in an environment begins with the conversation of t, which is longer when "
            "the environment is brought back; use a conversation of its own, as in t.sub(…)"
        )
