"""The ledger of worlds has a row for each world, and one for each snapshot of a world."""

import time
from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from holdfast.records.run import Run

if TYPE_CHECKING:
    from holdfast.journal.types import Lease


class WorldPhase(IntEnum):
    """The state of a world or a snapshot at its provider. A state is durable before the provider is
    asked to reach it. A state is only ever replaced by a later state."""

    WANTED = 0
    """The provider was asked for the world or is about to be asked. The world may exist."""
    READY = 1
    """The world exists and is in the state that the trajectory's record describes."""
    REMOVING = 2
    """Nobody uses the world any more. It may still exist."""
    REMOVED = 3
    """The provider confirmed that the world is gone."""


class WorldIntent(Struct, frozen=True, kw_only=True):
    """What is known of a world or a snapshot before its provider is asked for it."""

    name: str
    """A name that no other world or snapshot ever has. The provider keeps it as a label."""
    provider: str
    spec: str
    trajectory: str
    """The trajectory's name."""
    run: str
    """The run's name when the world was made."""
    episode: str = ""
    """The path of the step that opened the environment."""
    is_snapshot: bool = False
    origin: str = ""
    """For a snapshot, the handle of its world. For a restored world, the handle of its snapshot."""
    cuts: int = 0
    """How often the record of the episode had been cut when the world was made."""
    after: str = ""
    """For a snapshot, the path of the last action in it."""


class WorldRow(Struct, frozen=True):
    """A world or a snapshot in the ledger."""

    intent: WorldIntent
    trajectory: int
    """The trajectory's number."""
    epoch: int
    """The epoch of the last owner."""
    state: WorldPhase
    handle: str
    """The provider's handle; "" before the provider answered."""
    created: float
    """When the intent was written, in seconds since 1970."""
    ended: float | None
    """When the world was removed, in seconds since 1970; None if it was not removed yet."""
    cpu_seconds: float
    is_held: bool
    """Whether a living worker holds the world's trajectory."""
    is_over: bool
    """Whether the world's trajectory is settled or deleted, so that nobody will need the world."""

    @property
    def name(self) -> str:
        return self.intent.name

    @property
    def is_snapshot(self) -> bool:
        return self.intent.is_snapshot

    def seconds(self, now: float) -> float:
        """Returns the number of seconds for which the world has existed. `now` is in seconds since
        1970."""
        return max(0.0, (now if self.ended is None else self.ended) - self.created)


class WorldUse(Struct, frozen=True):
    """The resources that several worlds have used together."""

    worlds: int = 0
    seconds: dict[str, float] = {}
    """How long the worlds of each provider existed, in total."""
    cpu_seconds: float = 0.0


def use_of_worlds(rows: Sequence[WorldRow]) -> WorldUse:
    """Returns the resources that the worlds among the rows have used so far."""
    now, seconds = time.time(), dict[str, float]()
    worlds = [row for row in rows if not row.is_snapshot]
    for row in worlds:
        name = row.intent.provider
        seconds[name] = seconds.get(name, 0.0) + row.seconds(now)
    return WorldUse(len(worlds), seconds, sum(row.cpu_seconds for row in worlds))


class WorldLedger(Protocol):
    """The part of a journal that knows which worlds may exist."""

    async def plan_world(self, lease: "Lease", intent: WorldIntent) -> None:
        """Writes that a world or snapshot is about to be made. Raises `LeaseLost` if the lease is
        stale."""
        ...

    async def change_world(
        self,
        name: str,
        state: WorldPhase,
        *,
        lease: "Lease | None" = None,
        handle: str = "",
        cpu_seconds: float = 0.0,
    ) -> bool:
        """Writes a new state, and with a `lease` the epoch of the lease. Returns False without
        writing if there is no such row, if the row has a later state, or if there is no `lease` and
        a living worker holds the trajectory. Raises `LeaseLost` if the lease is stale."""
        ...

    async def worlds(
        self, *, run: Run | None = None, trajectory: int = 0, removed: bool = False
    ) -> list[WorldRow]:
        """Returns the worlds and snapshots of a run, of a trajectory (by its number), or all, in
        the order in which they were planned. With `removed`, includes worlds and snapshots that are
        gone."""
        ...

    async def worlds_label(self) -> str:
        """Returns the label that providers keep on every world of this journal."""
        ...
