"""The ledger of worlds: a row for each world, and one for each snapshot of a world."""

from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from holdfast.records.run import Run

if TYPE_CHECKING:
    from holdfast.journal.journal import Lease


class WorldPhase(IntEnum):
    """What the provider may have. A state is durable before the provider is asked to reach it, and
    only ever grows."""

    WANTED = 0
    """The provider is about to be asked, or was asked. It may exist."""
    READY = 1
    """The provider answered: it exists under its handle, or did once."""
    REMOVING = 2
    """Nobody uses it any more. It may still exist."""
    REMOVED = 3
    """The provider confirmed that it is gone."""


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
    """The path of the opening of the environment."""
    origin: str = ""
    """For a snapshot, the name of its world."""
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
    """When it was removed; None before."""
    cpu_seconds: float
    is_held: bool
    """Whether a living worker holds its trajectory."""

    @property
    def name(self) -> str:
        return self.intent.name

    @property
    def is_snapshot(self) -> bool:
        return bool(self.intent.origin)


class WorldLedger(Protocol):
    """The part of a journal that knows which worlds may exist."""

    async def plan_world(self, lease: "Lease", intent: WorldIntent) -> None:
        """Writes that a world or snapshot is about to be made. Raises `LeaseLost`."""
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
        """Writes a new state, and with a lease its owner's epoch. Returns False without writing if
        the row has a later state, or if there is no `lease` and a living worker holds the
        trajectory. Raises `LeaseLost`."""
        ...

    async def worlds(
        self, *, run: Run | None = None, trajectory: int = 0, removed: bool = False
    ) -> list[WorldRow]:
        """Returns the worlds and snapshots of a run, of a trajectory (by its number), or all, in
        the order in which they were planned. `removed` includes those that are gone."""
        ...

    async def worlds_label(self) -> str:
        """Returns the mark of this journal's worlds at their providers."""
        ...
