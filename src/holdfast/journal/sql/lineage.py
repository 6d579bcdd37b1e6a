"""Runs that share trajectories. Only one of them can be consumed, so that no trajectory is
delivered twice.

A transaction that begins to share or to consume locks all concerned runs, in the order of their
numbers. If two such transactions begin at the same moment, the second sees the changes of the
first.
"""

from collections.abc import Collection, Sequence

import msgspec
from msgspec import structs

from holdfast.journal.rules import shared_and_consumed
from holdfast.journal.sql.runs import find_series, lock
from holdfast.journal.sql.store import Store
from holdfast.records.errors import UsageError
from holdfast.records.run import Run


def share(store: Store, run: Run, others: Sequence[Run]) -> list[Run]:
    """Allows the run to use trajectories of other runs, and returns the runs whose trajectories it
    may use.

    Leaves out each run of `others` whose trajectories another consumed run of the series may use.
    If runs share trajectories, only one of these runs can ever be consumed, so that no trajectory
    is delivered twice.
    """
    held = _lock(store, [run, *others])
    if run.id not in held:
        return []
    series = {each.id: each for each in find_series(store, run.spec.series) if each.id != run.id}
    taken = {mark for each in _consumers(store, series) for mark in series[each].spec.lineage}
    marks = {other.id: held[other.id].spec.lineage for other in others if other.id in held}
    free = [other for other in others if other.id in marks and not taken & {*marks[other.id]}]
    spec = held[run.id].spec
    shared = [mark for other in free for mark in marks[other.id]]
    lineage = tuple(dict.fromkeys((*spec.lineage, *shared)))
    if lineage != spec.lineage:
        store.run(
            "UPDATE runs SET spec = :spec WHERE id = :run",
            run=run.id,
            spec=msgspec.msgpack.encode(structs.replace(spec, lineage=lineage)),
        )
    return free


def refuse_if_shared(store: Store, run: Run) -> None:
    """Raises `UsageError` if another run that shares trajectories with this run is consumed. Call
    it before this run gets a consumer."""
    if not run.spec.series:
        return
    held = _lock(store, [run, *_relatives(store, run)])
    if run.id not in held:
        return
    # Runs that begin to share in the meantime cannot be consumed before this transaction ends.
    relatives = {other.id: other for other in _relatives(store, held[run.id])}
    for other, consumer in sorted(_consumers(store, relatives).items()):
        if other != run.id:
            raise shared_and_consumed(run, relatives[other], consumer)


def _relatives(store: Store, run: Run) -> list[Run]:
    own = set(run.spec.lineage)
    return [other for other in find_series(store, run.spec.series) if own & {*other.spec.lineage}]


def _lock(store: Store, runs: Sequence[Run]) -> dict[int, Run]:
    """Locks and returns the runs that still exist."""
    held = {}
    for run in sorted({run.id: run for run in runs}.values(), key=lambda each: each.id):
        try:
            held[run.id] = lock(store, run)
        except UsageError:
            continue  # The run was deleted.
    return held


def _consumers(store: Store, runs: Collection[int]) -> dict[int, str]:
    """Returns the consumed runs among these runs, each with the name of one of its consumers."""
    return dict(
        store.rows(
            "SELECT run, min(consumer) FROM consumers WHERE run = ANY(:runs) GROUP BY run",
            runs=list(runs),
        )
    )
