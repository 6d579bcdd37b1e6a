"""A run as it is carried from one journal to another: everything but its logs and blobs."""

from bisect import bisect_right

from msgspec import Struct, msgpack, structs

from holdfast.records.run import RunSpec
from holdfast.records.samples.summary import Summary


class PlacedTrajectory(Struct, frozen=True):
    """One trajectory, by its number in the journal that it comes from."""

    id: int
    task: int
    sample: int
    status: int
    epoch: int
    settled: int | None
    """Its place in the order of settling, over all runs of that journal."""
    summary: Summary | None


class RunImage(Struct, frozen=True):
    spec: bytes
    changes: bytes
    created: float
    sealed: bool
    tasks: list[tuple[int, str, bytes, bool]]
    """Ordinal, id, body, whether it is one of the run's current ones."""
    trajectories: list[PlacedTrajectory]
    versions: list[tuple[int, str, int, str]]
    consumers: list[tuple[str, int | None, int]]
    """Name, last committed step, how far in the order of settling it has looked."""
    deliveries: list[tuple[int, str, int, int, int | None, int | None, str]]
    """Task, consumer, state, settled, step, place, reason."""

    def named(self, name: str) -> bytes:
        """The spec under another name."""
        return msgpack.encode(structs.replace(msgpack.decode(self.spec, type=RunSpec), name=name))

    @property
    def places(self) -> list[int]:
        """Every place in the order of settling that the run speaks of, in order. A member that was
        settled again has left its first place to the deliveries that know it."""
        held = {row.settled for row in self.trajectories if row.settled}
        return sorted(held | {place for _, _, _, place, *_ in self.deliveries if place})

    def placed_from(self, base: int) -> "RunImage":
        """The same order of settling, counted on from `base` in the journal that it goes to."""
        places = self.places
        new = {place: base + rank for rank, place in enumerate(places, 1)}
        return structs.replace(
            self,
            trajectories=[
                structs.replace(row, settled=None if row.settled is None else new[row.settled])
                for row in self.trajectories
            ],
            consumers=[
                (name, committed, base + passed if (passed := bisect_right(places, seen)) else 0)
                for name, committed, seen in self.consumers
            ],
            deliveries=[
                (task, name, state, new.get(place, 0), step, number, reason)
                for task, name, state, place, step, number, reason in self.deliveries
            ],
        )

    def comparable(self) -> "RunImage":
        """What a run and its copy have in common: everything except the name, the journals' own
        numbers, and leases."""
        image = self.placed_from(0)
        members = [structs.replace(row, id=0) for row in image.trajectories]
        return structs.replace(image, spec=self.named("copy"), trajectories=members)
