"""AttemptState: whether an attempt may go on, and what broke it.

The first error that was not the policy's doing is kept: a rollout that swallows it cannot turn an
accident into an outcome (I5).
"""

import asyncio

from holdfast.records.errors import Cause, RunStopped
from holdfast.records.failure import classify
from holdfast.records.step import Record


class AttemptState:
    """Of one attempt: open, then broken or not, then over."""

    def __init__(self, stop: asyncio.Event):
        """`stop`: set when the run is asked to stop."""
        self.broken: BaseException | None = None
        """The first error that no `except` in a rollout may turn into an outcome."""
        self.step = ""
        """The step that was begun last."""
        self.closing_records: list[Record] = []
        """Errors while closing; written with the attempt's last record."""
        self.concluded = asyncio.Event()
        """Set when the attempt's last record is durable."""
        self._stop = stop
        self._is_over = False
        self._blamed: list[tuple[BaseException, str]] = []

    @property
    def is_stopping(self) -> bool:
        """Whether the run is asked to stop: nothing new is begun."""
        return self._stop.is_set()

    def end(self) -> None:
        """From now on, `check_open` raises."""
        self._is_over = True

    def check_open(self) -> None:
        """Raises `RunStopped` once the attempt is over."""
        if self._is_over:
            raise RunStopped("the attempt is over; a task that it left behind does nothing more")

    def check_running(self) -> None:
        """Raises `RunStopped`, which also breaks the attempt, once the run is asked to stop."""
        if self.is_stopping:
            stopped = RunStopped("the run is stopping; this trajectory goes on when it is resumed")
            raise self.fail(stopped)

    def check_unbroken(self) -> None:
        """Raises what keeps this attempt from taking a step, recorded or new."""
        self.check_open()
        if self.broken is not None:
            raise self.broken

    def check_usable(self) -> None:
        """Raises what keeps this attempt from doing anything new."""
        self.check_unbroken()
        self.check_running()

    def fail(self, error: BaseException, path: str | None = None) -> BaseException:
        """Breaks the attempt with `error`, unless it is broken already. Returns the error, to be
        raised; `path`: the step that it came from."""
        if self.broken is None:
            self.broken = error
        if path is not None:
            self.blame(error, path)
        return error

    def blame(self, error: BaseException, path: str) -> None:
        """Remembers at which step an error was raised, where branches run side by side."""
        self._blamed.append((error, path))

    def step_of(self, error: BaseException) -> str:
        """The step that `error` came from: the blamed one, else the last that was begun."""
        return next((path for blamed, path in self._blamed if blamed is error), self.step)


def is_accident(error: BaseException) -> bool:
    """Whether an error is something that the policy did not do."""
    return classify(error)[0] is not Cause.POLICY
