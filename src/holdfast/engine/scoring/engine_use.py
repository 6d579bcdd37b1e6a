"""EngineUse tracks how one call of a scorer uses engines, for example the engine of a judge.

Any code in that call, however deep, finds the current `EngineUse` with `engine_use()`. The object
says how long an engine may be down. It counts outages, so that the scorer's deadline covers only
the scorer's own work. It counts the tokens that were used. If an engine cannot be used, it keeps
the error, even if user code hides that error behind another one. It also keeps whether a judge's
answer was unreadable, and which judge was asked first.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from holdfast.records.errors import EndpointDown, PolicyRefused
from holdfast.records.usage import Usage, UsageByModel, add_usages


class Outages(Protocol):
    """An object that knows for how many seconds an engine has been down so far."""

    @property
    def seconds_down(self) -> float: ...


class FirstJudgeReached(Exception):
    """Raised to end a call at its first judge, because no engine may be asked."""


class EngineUse:
    """The use of engines by one call of a scorer, visible in all tasks and threads of the call."""

    def __init__(self, patience: float, *, asks: bool = True):
        """If `asks` is false, the call ends at its first judge, and no engine is asked."""
        self._asks = asks
        self.patience = patience
        """How many seconds an outage may last."""
        self.unusable: EndpointDown | PolicyRefused | None = None
        """Why an engine cannot be used, or None."""
        self.used: UsageByModel = {}
        """The tokens of all answers."""
        self.unread = False
        """Whether a judge gave no verdict, because its answers could not be read."""
        self.first_judge = ""
        """The identity of the first judge that was asked."""
        self.makes_judges = False
        """Whether one of the judges that were asked was made by the scorer itself, in this call or
        an earlier one."""
        self._before: dict[Outages, float] = {}

    def add_judge(self, identity: str, *, is_made: bool) -> None:
        """Notes a judge that is about to be asked."""
        self.first_judge = self.first_judge or identity
        self.makes_judges = self.makes_judges or is_made
        if not self._asks:
            raise FirstJudgeReached

    def add(self, model: str, usage: Usage) -> None:
        """Counts the tokens of an answer."""
        self.used = add_usages(self.used, {model: usage})

    def count(self, engine: Outages) -> None:
        """Counts the outages of the engine from now on."""
        self._before.setdefault(engine, engine.seconds_down)

    @property
    def seconds(self) -> float:
        """The seconds for which engines were down, each since it was first asked."""
        return sum(engine.seconds_down - before for engine, before in self._before.items())


_current: ContextVar[EngineUse | None] = ContextVar("holdfast_engine_waits", default=None)


def engine_use() -> EngineUse | None:
    """Returns the engine use of the scorer that runs this code, or None outside of a scorer."""
    return _current.get()


@contextmanager
def track_engine_use(patience: float, *, asks: bool = True) -> Iterator[EngineUse]:
    use = EngineUse(patience, asks=asks)
    token = _current.set(use)
    try:
        yield use
    finally:
        _current.reset(token)
