"""Guards the calls of the methods of `t`.

If such a method is misused, its error breaks the attempt. So a rollout that catches the error and
goes on cannot turn a mistake into an outcome (I5).

A step is a coroutine, which does nothing if it is never awaited. So a step that was called and
never awaited is an error at the rollout's end. The list keeps only the steps that have not begun,
in the order of the calls. A step that has begun is removed at the next call or at the end.
"""

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from holdfast.records.encoding.declared import check_names
from holdfast.records.errors import HoldfastError
from holdfast.rollout.replay.current_code import CURRENT, change_current
from holdfast.rollout.replay.session import is_accident

Args = ParamSpec("Args")
Result = TypeVar("Result")
Step = Coroutine[Any, Any, object]


class PendingSteps:
    """The steps of one rollout that were called and have not begun, in all of its conversations and
    tasks."""

    __slots__ = ("_called",)

    def __init__(self) -> None:
        self._called: list[tuple[str, Step]] = []

    @classmethod
    def of_this_task(cls) -> "PendingSteps":
        """Returns a list. From now on, each step that this asyncio task or a child task calls is
        added to the list."""
        pending = cls()
        change_current(pending=pending)
        return pending

    def add(self, name: str, step: Step) -> None:
        called = self._called
        # Only from the end: this is cheap both if each step is awaited at once and if many are
        # gathered.
        while called and not _is_unbegun(called[-1][1]):
            called.pop()
        called.append((name, step))

    async def never_awaited(self) -> str:
        """Closes all steps that were never awaited. Returns the name of the first one, or ""."""
        if not self._unbegun():
            return ""
        # If the rollout made a task for the step, the task begins now. This code must not close it.
        await asyncio.sleep(0)
        left, self._called = self._unbegun(), []
        for _, step in left:
            step.close()
        return left[0][0] if left else ""

    def _unbegun(self) -> list[tuple[str, Step]]:
        return [(name, step) for name, step in self._called if _is_unbegun(step)]


def _is_unbegun(step: Step) -> bool:
    return inspect.getcoroutinestate(step) == inspect.CORO_CREATED


def must_be_awaited(
    name: str,
) -> Callable[
    [Callable[Args, Coroutine[Any, Any, Result]]],
    Callable[Args, Coroutine[Any, Any, Result]],
]:
    """Marks a method as a step that has to be awaited. `name` is the method as a rollout writes it,
    such as `t.generate`."""

    def mark(
        method: Callable[Args, Coroutine[Any, Any, Result]],
    ) -> Callable[Args, Coroutine[Any, Any, Result]]:
        known = _keywords(method)

        @functools.wraps(method)
        def call(*args: Args.args, **kw: Args.kwargs) -> Coroutine[Any, Any, Result]:
            if known is not None and not known.issuperset(kw):
                with breaks_attempt(args):
                    check_names(kw, sorted(known), f"{name} has no argument")

            async def step() -> Result:
                with breaks_attempt(args):
                    return await method(*args, **kw)

            made = step()
            pending = CURRENT.get().pending
            if pending is not None:
                pending.add(name, made)
            return made

        return call

    return mark


def breaks_on_misuse(method: Callable[Args, Result]) -> Callable[Args, Result]:
    """Marks a method of `t` that is not a step. If it is misused, its error breaks the attempt."""

    @functools.wraps(method)
    def call(*args: Args.args, **kw: Args.kwargs) -> Result:
        with breaks_attempt(args):
            return method(*args, **kw)

    return call


@contextmanager
def breaks_attempt(args: "Sequence[Any]") -> Iterator[None]:
    """Breaks the attempt if the block raises an error of Holdfast that the policy did not cause.
    `args` are the arguments of the method that runs in the block; the first one is `t`."""
    try:
        yield
    except HoldfastError as error:
        if is_accident(error):
            reference = CURRENT.get().session
            # The attempt whose code made the call, if known, because `t` may belong to another
            # attempt.
            session = reference() if reference is not None else None
            (session or args[0].session).state.fail(error)
        raise


def _keywords(method: Callable[..., object]) -> frozenset[str] | None:
    """Returns the names of a method's parameters, or None if the method accepts any keyword."""
    parameters = inspect.signature(method).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return None
    return frozenset(parameters.keys() - {"self"})
