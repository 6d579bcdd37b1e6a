"""EngineUse: how one call of a scorer uses engines, for example the engine of a judge.

Any code in that call, however deep, finds the current `EngineUse` here. It tells how long an engine
may be down. It also counts outages, so that the scorer's deadline covers only its own work, and the
tokens that were used. If an engine cannot be used, the error is kept here, even if user code hides
it behind another error. It also keeps whether a judge's answer was unreadable.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from holdfast.records.errors import EndpointDown, PolicyRefused
from holdfast.records.usage import Usage, UsageByModel, add_usages


class Outages(Protocol):
    """An engine that says for how long it was down so far."""

    @property
    def seconds_down(self) -> float: ...


class EngineUse:
    """The use of engines by one call of a scorer, visible in all tasks and threads of the call."""

    def __init__(self, patience: float):
        self.patience = patience
        """How many seconds an outage may last."""
        self.unusable: EndpointDown | PolicyRefused | None = None
        """Why an engine cannot be used, or None."""
        self.used: UsageByModel = {}
        """The tokens of all answers."""
        self.unread = False
        """Whether a judge gave no verdict, because its answers could not be read."""
        self._before: dict[Outages, float] = {}

    def add(self, model: str, usage: Usage) -> None:
        """Counts the tokens of an answer."""
        self.used = add_usages(self.used, {model: usage})

    def count(self, engine: Outages) -> None:
        """Counts the outages of the engine from now on."""
        self._before.setdefault(engine, engine.seconds_down)

    @property
    def seconds(self) -> float:
        """The seconds in which an engine was down since it was first asked."""
        return sum(engine.seconds_down - before for engine, before in self._before.items())


_current: ContextVar[EngineUse | None] = ContextVar("holdfast_engine_waits", default=None)


def engine_use() -> EngineUse | None:
    """Returns the engine use of the scorer that runs this code, or None outside of a scorer."""
    return _current.get()


@contextmanager
def track_engine_use(patience: float) -> Iterator[EngineUse]:
    waits = EngineUse(patience)
    token = _current.set(waits)
    try:
        yield waits
    finally:
        _current.reset(token)
