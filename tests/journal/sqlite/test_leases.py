"""What a claim, and the end of a worker, cost: nothing that others hold or wait for is searched."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from holdfast.journal.lease_clock import Instant
from holdfast.journal.sql import leases, runs
from holdfast.journal.sqlite import schema
from holdfast.journal.sqlite.store import SqliteStore
from holdfast.journal.types import Worker
from support.records import make_tasks, someone_else, spec

NOW = Instant("", 0.0, 1_000.0)
STEP = 10
"""Instructions of SQLite's machine between two counts."""


def instructions(*, tasks: int, held: int) -> tuple[int, int]:
    """Of a claim of one group, and of leaving with it, while another worker holds so many."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        schema.prepare(connection, ":memory:")
        store = SqliteStore(connection, lambda: NOW)
        names = [f"t{number}" for number in range(tasks)]
        run = runs.create(store, spec(samples=4), make_tasks(*names), sealed=True)

        def join(pid: int) -> Worker:
            who = someone_else(pid)
            return leases.join(store, run, who, lease_seconds=60.0, share=True)

        first, second = join(1), join(2)
        assert len(leases.claim(store, first, groups=held, after=-1)) == held
        with counting(connection) as claiming:
            (claim,) = leases.claim(store, second, groups=1, after=-1)
        with counting(connection) as leaving:
            leases.release(store, second.id)
        (again,) = leases.claim(store, first, groups=1, after=-1)
        assert (claim.ordinal, again.ordinal) == (held, held)
        return len(claiming), len(leaving)


@contextmanager
def counting(connection: sqlite3.Connection) -> Iterator[list[None]]:
    """A list that grows with the work that SQLite does in the block."""
    counted: list[None] = []
    connection.set_progress_handler(lambda: counted.append(None), STEP)
    yield counted
    connection.set_progress_handler(None, STEP)


@pytest.mark.parametrize(("tasks", "held"), [(1_000, 1), (1_000, 900)], ids=["waits", "is held"])
def test_claims_and_departures_cost_the_same_however_much(tasks: int, held: int) -> None:
    few = instructions(tasks=4, held=1)
    many = instructions(tasks=tasks, held=held)
    assert all(more <= 1.5 * less for less, more in zip(few, many, strict=True)), (few, many)
