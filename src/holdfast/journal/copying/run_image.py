"""A run as it is carried from one journal to another: everything but its logs and blobs."""

from msgspec import Struct, msgpack, structs

from holdfast.records.run import RunSpec


class PlacedTrajectory(Struct, frozen=True):
    """One trajectory, by its number in the journal that it comes from."""

    id: int
    task: int
    sample: int
    status: int
    epoch: int
    settled: int | None
    """Its place in the order of settling, over all runs of that journal."""


class LogRow(Struct, frozen=True):
    """One record as it lies in a log."""

    trajectory: int
    seq: int
    epoch: int
    body: bytes


class RunImage(Struct, frozen=True):
    spec: bytes
    changes: bytes
    created: float
    sealed: bool
    tasks: list[tuple[int, str, bytes, int, bool]]
    """Ordinal, id, body, checksum, whether it is one of the run's current ones."""
    trajectories: list[PlacedTrajectory]
    versions: list[tuple[int, str, int, str]]
    consumers: list[tuple[str, int | None, int]]
    """Name, last committed step, how far in the order of settling it has looked."""
    deliveries: list[tuple[int, str, int, int, int | None, int | None, str]]
    """Task, consumer, state, settled, step, place, reason."""

    def named(self, name: str) -> bytes:
        """The spec under another name."""
        return msgpack.encode(structs.replace(msgpack.decode(self.spec, type=RunSpec), name=name))

    def places_from(self, base: int) -> dict[int, int]:
        """The order of settling, counted on from `base` in the journal that it goes to."""
        known = {row.settled for row in self.trajectories if row.settled is not None}
        return {place: base + rank for rank, place in enumerate(sorted(known), 1)}


def seen_from(places: dict[int, int], seen: int) -> int:
    """How far a consumer has looked, in the new order."""
    return max((new for old, new in places.items() if old <= seen), default=0)
