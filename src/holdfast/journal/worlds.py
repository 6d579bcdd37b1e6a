"""The rows of the journal's ledger of worlds: one for each world, and one for each snapshot."""

from enum import IntEnum

from msgspec import Struct


class WorldState(IntEnum):
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
    state: WorldState
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
