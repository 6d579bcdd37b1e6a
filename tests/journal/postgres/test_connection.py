"""Connections: through a pooler in transaction mode, and none where no server is meant."""

import asyncio
import shutil
import socket
import subprocess
import sys
import time

import pytest

from holdfast.journal.damage.check_server import check_server
from holdfast.journal.postgres.journal import PostgresJournal
from support.journal import postgres_guard
from support.journal import postgres_server as server
from support.journal.own_server import free_port, own_server
from support.records import consuming, joined, make_tasks, ready, settle, spec, values

PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")


def test_a_file_needs_no_driver(tmp_path):
    program = (
        "import sys, asyncio, holdfast, holdfast.cli.main, holdfast.cli.commands.run\n"
        "journal = holdfast.open_journal(sys.argv[1])\n"
        "asyncio.run(journal.put_blob(b'x'))\n"
        "asyncio.run(journal.close())\n"
        "print([name for name in ('psycopg', 'ray') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "x.db")],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "[]\n"


@pytest.mark.skipif(not server.is_available(), reason="needs a PostgreSQL server")
@pytest.mark.skipif(PGBOUNCER is None, reason="needs pgbouncer")
@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("default_transaction_isolation", "read committed"),
        ("default_transaction_isolation", "serializable"),
        ("default_transaction_read_only", "on"),
        ("synchronous_commit", "local"),
    ],
)
def test_a_pooler_in_transaction_mode_is_recognized_and_works(setting, value):
    with own_server() as own, pooler(own.folder) as url:
        own.psql("postgres", f"ALTER DATABASE runs SET {setting} = '{value}'")

        async def use() -> None:
            journals = [PostgresJournal(url) for _ in range(4)]
            first = journals[0]
            run, _, claims = await ready(first, *"abcd", samples=2)
            leases = [lease for claim in claims for lease in claim.open]
            await asyncio.gather(*(first.append(lease, values(1)) for lease in leases))
            await asyncio.gather(*(journal.put_blob(b"x" * 9000) for journal in journals))
            await asyncio.gather(*(journal.runs() for journal in journals))
            for claim in claims:
                await settle(first, claim)
            trainer = await consuming(journals[1], run)
            assert len((await journals[1].next_batch(trainer, 1, groups=4)).groups) == 4
            other = await journals[2].create_run(spec("other"), make_tasks("a"))
            worker = await joined(journals[2], other)
            assert len(await journals[2].claim(worker, groups=1)) == 1
            assert all(journal._reader.pooled for journal in journals)
            commits = "SELECT current_setting('synchronous_commit')"
            assert await first.transact(lambda store: store.row(commits)) == ("on",)
            await asyncio.gather(*(journal.close() for journal in journals))

        asyncio.run(use())
        assert asyncio.run(check_server(own.url)).findings == []


def is_taken(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class pooler:  # noqa: N801 - used as a statement
    """PgBouncer with two connections to the server, and its URL."""

    def __init__(self, folder):
        self.folder = folder

    def __enter__(self) -> str:
        port = free_port()
        (self.folder / "users").write_text('"trainer" ""\n')
        (self.folder / "pooler.ini").write_text(
            f"[databases]\nruns = host={self.folder} dbname=runs\n[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = trust\nauth_file = {self.folder}/users\npool_mode = transaction\n"
            "default_pool_size = 2\n"
        )
        self.process = subprocess.Popen(
            [PGBOUNCER, "-q", str(self.folder / "pooler.ini")],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            **postgres_guard.user(),
        )  # fmt: skip
        while not is_taken(port):
            assert self.process.poll() is None
            time.sleep(0.01)
        return f"postgresql://trainer@127.0.0.1:{port}/runs"

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(10)
