"""Reads a run from a journal and writes it into another (see `copy_runs`)."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from msgspec import Struct, msgpack, structs

from holdfast.journal.entries import AppendEntry
from holdfast.journal.rows import kept_summary, summary_body
from holdfast.journal.sql.groups import recount, recount_totals
from holdfast.journal.sql.runs import by_id, rename, unseal
from holdfast.journal.sql.store import LogRow, Row, Store, refuse_none
from holdfast.journal.types import Lease
from holdfast.records.encoding.codec import checksum
from holdfast.records.run import Run, RunSpec
from holdfast.records.samples.summary import Summary
from holdfast.records.trajectory import Status, TrajectoryKey


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
    tasks: list[tuple[int, str, bytes, int, bool]]
    """Ordinal, id, body, checksum, and whether the task is one of the run's current tasks. The
    checksum is copied, so that damage to a task shows in the copy."""
    trajectories: list[PlacedTrajectory]
    versions: list[tuple[int, str, int, str]]
    consumers: list[tuple[str, int | None, int]]
    """Name, last committed step, and the last place in the order of settling that the consumer has
    looked at."""
    deliveries: list[tuple[int, str, int, int, int | None, int | None, str]]
    """Task, consumer, state, settled, step, place, reason."""

    def named(self, name: str) -> bytes:
        """Returns the encoded spec, with `name` as the run's name."""
        return msgpack.encode(structs.replace(msgpack.decode(self.spec, type=RunSpec), name=name))

    @property
    def places(self) -> list[int]:
        """Returns every place in the order of settling that the run uses, in order. If a member was
        settled again, its first place remains only in the deliveries that use it."""
        held = {row.settled for row in self.trajectories if row.settled}
        return sorted(held | {place for _, _, _, place, *_ in self.deliveries if place})

    def placed_from(self, base: int) -> "RunImage":
        """Returns the image with the same order of settling, but with the places numbered from
        `base` + 1, because they must be free in the target journal."""
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
        """Returns the image with only the data that must be equal in a run and its copy. The run's
        name and the journals' own numbers are replaced."""
        image = self.placed_from(0)
        members = [structs.replace(row, id=0) for row in image.trajectories]
        return structs.replace(image, spec=self.named("copy"), trajectories=members)


def read_image(store: Store, run: Run) -> RunImage:
    def rows(columns: str, table: str, order: str) -> list[Row]:
        query = f"SELECT {columns} FROM {table} WHERE run = :run ORDER BY {order}"  # noqa: S608 - ours
        return store.rows(query, run=run.id)

    described = store.row("SELECT spec, changes, created FROM runs WHERE id = :run", run=run.id)
    assert described is not None, "it was just listed"
    columns = "id, task, sample, status, epoch, settled, summary"
    members = rows(columns, "trajectories", "task, sample")
    spec, changes, created = described
    return RunImage(
        spec,
        changes,
        created,
        store.row("SELECT 1 FROM streams WHERE run = :run", run=run.id) is None,
        [
            (*task, bool(current))
            for *task, current in rows("ordinal, id, body, crc, current", "tasks", "ordinal")
        ],
        [
            PlacedTrajectory(
                number, task, sample, status, epoch, settled, kept_summary(summary, number)
            )
            for number, task, sample, status, epoch, settled, summary in members
        ],
        rows("ordinal, name, step, digest", "versions", "ordinal"),
        rows("consumer, committed, seen", "consumers", "consumer"),
        rows("task, consumer, state, settled, step, place, reason", "deliveries", "consumer, task"),
    )


def read_logs(store: Store, trajectories: Sequence[int]) -> dict[int, list[LogRow]]:
    return {trajectory: list(rows) for trajectory, rows in store.logs(trajectories)}


def begin(store: Store, image: RunImage, name: str) -> tuple[int, dict[int, int]]:
    """Writes the run without its logs. Returns the number of the new run, and the new number of
    each trajectory by its old number."""
    described = (name, image.named(name), image.changes, image.created)
    store.insert("runs", "name, spec, changes, created", [described])
    row = store.row("SELECT id FROM runs WHERE name = :name", name=name)
    assert row is not None, "it was just written"
    run: int = row[0]
    store.insert("totals", "run", [(run,)])
    store.insert(
        "tasks",
        "run, ordinal, id, body, crc, current",
        [(run, *task) for task in image.tasks],
    )
    groups = [(run, ordinal, current) for ordinal, *_, current in image.tasks]
    store.insert("task_groups", "run, task, current", groups)
    store.insert(
        "trajectories",
        "run, task, sample, status, epoch",
        [
            (run, member.task, member.sample, member.status, member.epoch)
            for member in sorted(image.trajectories, key=lambda member: member.id)
        ],
    )
    members = store.rows("SELECT task, sample, id FROM trajectories WHERE run = :run", run=run)
    numbers = {(task, sample): number for task, sample, number in members}
    return run, {row.id: numbers[row.task, row.sample] for row in image.trajectories}


def write_logs(store: Store, logs: Mapping[int, Sequence[LogRow]]) -> None:
    """Writes the logs of trajectories that have no log yet. `logs` maps the number that a
    trajectory has in the target journal to the trajectory's whole log."""
    query = "SELECT id, epoch FROM trajectories WHERE id = ANY(:ids)"
    epochs: dict[int, int] = dict(store.rows(query, ids=list(logs)))
    store.append([[_entry(each, epochs[each], logs[each])] for each in logs], refuse_none)


def _entry(trajectory: int, epoch: int, log: Sequence[LogRow]) -> AppendEntry:
    """Returns an entry under the trajectory's present epoch. Each record in the entry keeps the
    epoch that it has in the log."""
    lease = Lease(TrajectoryKey("", "", 0), trajectory, 0, epoch, Status.PENDING, False, 0)
    rows = [
        (trajectory, seq, written, checksum(body, trajectory, seq, written), body)
        for _, seq, written, _, body in log
    ]
    return AppendEntry(lease, 0, rows, sum(len(row[4]) for row in rows), None, None)


def finish(store: Store, image: RunImage, run: int, numbers: dict[int, int]) -> None:
    """Settles the trajectories in their order, and gives consumers their groups."""
    places = len(image.places)
    row = store.row(
        "UPDATE counters SET value = value + :more WHERE name = 'settled' RETURNING value",
        more=places,
    )
    assert row is not None, "the journal was created with it"
    placed = image.placed_from(row[0] - places)
    store.run_many(
        "UPDATE trajectories SET settled = :place, summary = :summary WHERE id = :id",
        [
            {
                "place": member.settled,
                "summary": member.summary and summary_body(member.summary, numbers[member.id]),
                "id": numbers[member.id],
            }
            for member in placed.trajectories
            if member.settled is not None
        ],
    )
    columns = "run, ordinal, name, step, digest"
    store.insert("versions", columns, [(run, *version) for version in image.versions])
    store.insert(
        "consumers",
        "run, consumer, committed, seen, epoch, host, pid, born, namespace, lease_until, clock, "
        "clock_until, lease_seconds",
        [
            (run, consumer, committed, seen, 1, "", 0, "", "", 0.0, "", 0.0, 0.0)
            for consumer, committed, seen in placed.consumers
        ],
    )
    store.insert(
        "deliveries",
        "run, task, consumer, state, settled, step, place, reason",
        [(run, *delivery) for delivery in placed.deliveries],
    )
    recount(store, run, [ordinal for ordinal, *_ in image.tasks])
    recount_totals(store, run)
    if not image.sealed:
        unseal(store, by_id(store, run))


def name(store: Store, runs: Sequence[tuple[Run, str]]) -> None:
    for run, new_name in runs:
        rename(store, run, new_name)
