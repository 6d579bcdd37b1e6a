"""A run on its way between journals: everything except its logs and blobs."""

from bisect import bisect_right

from msgspec import Struct, msgpack, structs

from holdfast.records.run import RunSpec
from holdfast.records.samples.summary import Summary


class PlacedTrajectory(Struct, frozen=True):
    """One trajectory, with its number in the source journal."""

    id: int
    task: int
    sample: int
    status: int
    epoch: int
    settled: int | None
    """The trajectory's place in the order of settling, over all runs of the source journal."""
    summary: Summary | None


class RunImage(Struct, frozen=True):
    spec: bytes
    changes: bytes
    created: float
    sealed: bool
    tasks: list[tuple[int, str, bytes, bool]]
    """Ordinal, id, body, and whether the task is one of the run's current tasks."""
    trajectories: list[PlacedTrajectory]
    versions: list[tuple[int, str, int, str]]
    consumers: list[tuple[str, int | None, int]]
    """Name, last committed step, and the last place in the order of settling that the consumer has
    looked at."""
    deliveries: list[tuple[int, str, int, int, int | None, int | None, str]]
    """Task, consumer, state, settled, step, place, reason."""

    def named(self, name: str) -> bytes:
        """Returns the spec under another name."""
        return msgpack.encode(structs.replace(msgpack.decode(self.spec, type=RunSpec), name=name))

    @property
    def places(self) -> list[int]:
        """Returns every place in the order of settling that the run uses, in order. If a member was
        settled again, its first place remains only in the deliveries that use it."""
        held = {row.settled for row in self.trajectories if row.settled}
        return sorted(held | {place for _, _, _, place, *_ in self.deliveries if place})

    def placed_from(self, base: int) -> "RunImage":
        """Returns the image with the same order of settling, numbered after `base` in the target
        journal."""
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
        """Returns the image with only what a run and its copy share. The run's name and the
        journals' own numbers are replaced."""
        image = self.placed_from(0)
        members = [structs.replace(row, id=0) for row in image.trajectories]
        return structs.replace(image, spec=self.named("copy"), trajectories=members)
