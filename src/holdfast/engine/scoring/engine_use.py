"""EngineUse: what one call of a scorer has of engines, such as that of a judge.

Whatever asks an engine in it, however deep in the user's code, finds here how long an engine may be
down, and has its outages counted here: a scorer's deadline is for its own work. An engine that
cannot be used at all is kept here, too: code that hides it behind another error does not make it a
failure of its own. So are the tokens that were used, and whether a judge could be read, whatever
the code makes of the answers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from holdfast.records.errors import EndpointDown, PolicyRefused
from holdfast.records.usage import Usage, UsageByModel, add_usages


class Outages(Protocol):
    """An engine, and for how long it was down so far."""

    @property
    def seconds_down(self) -> float: ...


class EngineUse:
    """The use of engines by one call of a scorer. The code that it calls sees it in every task and
    thread."""

    def __init__(self, patience: float):
        self.patience = patience
        """Seconds that an outage may last."""
        self.unusable: EndpointDown | PolicyRefused | None = None
        """Why an engine cannot be used at all, if so."""
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
        """In which an engine was down since it was first asked."""
        return sum(engine.seconds_down - before for engine, before in self._before.items())


_current: ContextVar[EngineUse | None] = ContextVar("holdfast_engine_waits", default=None)


def engine_use() -> EngineUse | None:
    """The engine use of the scorer that runs this code; None outside of a scorer."""
    return _current.get()


@contextmanager
def track_engine_use(patience: float) -> Iterator[EngineUse]:
    waits = EngineUse(patience)
    token = _current.set(waits)
    try:
        yield waits
    finally:
        _current.reset(token)
