"""CurrentCode: for which trajectory, attempt and step the code runs that asks.

One context variable: an asyncio task, and those that it makes, inherit the value that was current
when they were made. Sessions are held weakly: a connection that is opened in a step keeps the
step's context for its own life.
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
    """Nothing is set outside of a trajectory."""

    trajectory: str = ""
    session: "weakref.ref[Session] | None" = None
    step: "StepScope | None" = None
    """The step that runs this code; None in the rollout itself."""
    pending: "PendingSteps | None" = None
    """The rollout's steps that were called and have not begun."""


CURRENT: ContextVar[CurrentCode] = ContextVar("holdfast_code", default=CurrentCode())  # noqa: B039  # frozen


def code_in(context: Context) -> CurrentCode:
    """The value in another task's context."""
    return context.get(CURRENT, CurrentCode())


def change_current(**fields: Any) -> None:
    """Replaces fields for this asyncio task and the tasks that it makes from here on."""
    CURRENT.set(structs.replace(CURRENT.get(), **fields))


def enter_trajectory(key: "TrajectoryKey") -> None:
    """This task works on the trajectory from here on."""
    change_current(trajectory=str(key))


def enter_attempt(session: "Session") -> None:
    """This task works on the attempt from here on."""
    change_current(session=weakref.ref(session))


class StepScope:
    """User code that runs within the step at `path`: a tool's, an environment's or `t.value`'s.
    Entered around that code, live or when it is done again.

    On replay that code does not run, since what came of it is recorded. Were the steps that it
    takes counted with those of the conversation, all that follow would have other places on
    replay. So they are counted below the step that runs the code, as those of a branch are.
    """

    __slots__ = ("_before", "_budget", "_ordinal", "_path", "_session", "in_environment", "scope")

    def __init__(self, session: "Session", path: str, *, in_environment: bool = False):
        # Weakly: a connection that is opened in a step keeps the step's context for its own life.
        self._session = weakref.ref(session)
        self.in_environment = in_environment
        """Whether it is an environment's, and runs again when that is brought back: later on, when
        more was said and spent."""
        self.scope = f"{path}."
        self._path = path
        self._ordinal = 0
        self._budget: Budget | None = None
        self._before: StepScope | None = None

    @property
    def session(self) -> "Session | None":
        """None when the attempt is over and forgotten."""
        return self._session()

    @property
    def budget(self) -> Budget:
        """What was spent inside the step so far. The conversation counts it from the records when
        the step is done, as on replay."""
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
        # Not by its token: a coroutine that nobody finishes is closed in another context, where
        # something else may be going on.
        if CURRENT.get().step is self:
            change_current(step=self._before)
        session = self.session
        if session is not None and (kind is None or issubclass(kind, ToolSaysNo)):
            await session.log.cut_below(self._path)


def check_own_attempt(session: "Session") -> None:
    """Refuses steps of one attempt while another one runs: they would be recorded for an attempt
    that never made them."""
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
    """Whether this is the code of one of the attempt's steps."""
    step = CURRENT.get().step
    return step is not None and step.session is session


def enclosing_step(session: "Session", scope: str) -> StepScope | None:
    """The step that runs this code, unless the conversation of `scope` was begun in it. Raises as
    `check_own_attempt` does."""
    check_own_attempt(session)
    step = CURRENT.get().step
    if step is None or step.session is not session or scope.startswith(step.scope):
        return None
    return step


def check_not_in_step(session: "Session", scope: str, what: str) -> None:
    """Refuses what would change a conversation in one way live, and in another on replay."""
    if enclosing_step(session, scope) is not None:
        raise UsageError(
            f"{what} in a tool, an environment or a function given to t.value: on replay that code "
            "does not run, and the conversation would be another; use a conversation of its own, "
            "as in t.sub(…)"
        )


def check_not_in_environment(session: "Session", scope: str) -> None:
    """Refuses branches of a conversation that has gone on when the same code runs again."""
    inside = enclosing_step(session, scope)
    if inside is not None and inside.in_environment:
        raise UsageError(
            "t.branch in an environment begins with the conversation of t, which is longer when "
            "the environment is brought back; use a conversation of its own, as in t.sub(…)"
        )
