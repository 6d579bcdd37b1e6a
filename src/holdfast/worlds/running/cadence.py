"""Cadence: decides when to take a snapshot of a world's files."""

import re

from msgspec import Struct

from holdfast.records.errors import UsageError
from holdfast.worlds.contract.spec import read_size
from holdfast.worlds.contract.world import World

REPEATED = 4.0
"""By default, repeating the commands since the last snapshot takes at most this many times as long
as a snapshot. So snapshots cost at most a quarter of the commands' time."""
USUAL_SECONDS = 0.5
"""How long a commit took in measurements (see benchmarks/RESULTS.md)."""
_SECONDS = re.compile(r"(\d+(?:\.\d+)?)\s*s")


class Cadence(Struct):
    """Decides when a world's next snapshot is due. At most one of `actions`, `seconds` and `size`
    is set. If none is set, the default (see `REPEATED`) applies."""

    actions: int = 0
    seconds: float = 0.0
    size: int = 0
    cost: float = USUAL_SECONDS
    """How many seconds the last snapshot took."""
    written: int = 0
    """How many bytes the world had written at the last snapshot."""

    @classmethod
    def of(cls, given: int | str | None) -> "Cadence":
        if given is None:
            return cls()
        if isinstance(given, int) and not isinstance(given, bool) and given > 0:
            return cls(actions=given)
        text = str(given).strip()
        try:
            if match := _SECONDS.fullmatch(text):
                return cls(seconds=float(match[1]))
            return cls(size=max(1, read_size(text)))
        except ValueError:
            raise UsageError(
                f"snapshot_every={given!r}: give a number of actions, or text such as 60s or 64m"
            ) from None

    async def is_due(self, world: World, *, actions: int, seconds: float) -> bool:
        if self.actions:
            return actions >= self.actions
        if self.size:
            return abs((await world.use()).written - self.written) >= self.size
        return seconds >= (self.seconds or REPEATED * self.cost)

    async def taken(self, world: World, *, seconds: float) -> None:
        self.cost = seconds
        if self.size:
            self.written = (await world.use()).written
