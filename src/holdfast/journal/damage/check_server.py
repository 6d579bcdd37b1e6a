"""Checks everything of a journal on a server that the server does not check itself.

PostgreSQL checks its own pages and indexes (`pg_amcheck`, data checksums). This check reads the
data on which our writers rely, as in a file (`tables`), in one snapshot. It also finds lost
commits.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from holdfast.journal.damage import tables
from holdfast.journal.damage.report import Report
from holdfast.journal.postgres import schema
from holdfast.journal.postgres.address import ServerAddress, address_of
from holdfast.journal.postgres.connection import Link, explain, plain_connect
from holdfast.journal.postgres.store import PostgresStore
from holdfast.journal.sql import logs
from holdfast.journal.sql.store import Store
from holdfast.journal.types import Cut
from holdfast.records.errors import HoldfastError

RESTORE = "restore it from a backup"
_SIZE = """SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'holdfast' AND c.relkind = 'r'"""
Result = TypeVar("Result")


async def check_server(where: str) -> Report:
    """Verifies the journal at that URL. Raises an error if it is not a journal."""
    return await asyncio.to_thread(_with, address_of(where), _check, read_only=True)


async def repair_server(where: str) -> tuple[list[Cut], str]:
    """Cuts torn logs to their last good record, rebuilds data that follows from other rows, and
    accepts losses. Returns the cuts and a description of the losses. All of it is done, or nothing.
    Raises `RunHeld` while a live worker holds a run."""
    return await asyncio.to_thread(_with, address_of(where), _repair)


def _with(
    address: ServerAddress,
    do: Callable[[PostgresStore, ServerAddress, list[schema.Loss]], Result],
    *,
    read_only: bool = False,
) -> Result:
    ready = partial(schema.require, address=address)
    link = Link(address, plain_connect, ready, read_only=read_only)
    try:
        connection = link.get()
        connection.limit_statements(None)
        # Before the snapshot: later notes of this machine would be ahead of the snapshot.
        losses = schema.find_losses(connection)
        mode = "ISOLATION LEVEL REPEATABLE READ READ ONLY" if read_only else "READ WRITE"
        connection.execute(f"BEGIN {mode}; SET LOCAL idle_in_transaction_session_timeout = 0")
        result = do(PostgresStore(connection), address, losses)
        connection.execute("COMMIT")
        return result
    except HoldfastError:
        raise
    except Exception as error:
        raise explain(error, address) from error
    finally:
        link.drop()


def _check(store: PostgresStore, address: ServerAddress, losses: list[schema.Loss]) -> Report:
    report = Report(address.name, RESTORE)
    if losses:
        what = schema.describe_losses(losses)
        report.add("server", what, "go back to a server that has them, or accept it with --repair")
    tables.check_tables(store, report, first=(_size,))
    return report


def _size(store: Store, report: Report) -> None:
    row = store.row(_SIZE)
    report.bytes = row[0] if row else 0


def _repair(
    store: PostgresStore, address: ServerAddress, losses: list[schema.Loss]
) -> tuple[list[Cut], str]:
    del address, losses
    tables.refuse_if_held(store)
    tables.put_tasks_back(store)
    tables.number_samples_again(store)
    cuts = []
    for name, (trajectory, *_) in list(tables.named_trajectories(store)):
        for _, rows in store.logs([trajectory]):
            cuts.append(logs.mend(store, trajectory, rows, name=name))
    tables.count_anew(store)
    return [cut for cut in cuts if cut is not None], schema.accept_losses(store.connection)
