"""A connection that listens: what other processes say of runs that somebody here waits for.

The event loop itself hears it: a notification is a few bytes on a socket. Where the connection is
lost, or a pooler is in between, nobody listens, and whoever waits looks again after a while.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import psycopg

from holdfast.journal.changes import POLL_SECONDS, Changes
from holdfast.journal.postgres.address import ServerAddress
from holdfast.journal.postgres.connection import ServerConnection, plain_connect
from holdfast.journal.postgres.store import CHANNEL


class ChangeListener:
    """Listens in the event loop that was last seen, once somebody is interested."""

    def __init__(self, address: ServerAddress, threads: ThreadPoolExecutor, changes: Changes):
        self.interests: set[str] = set()
        """What is listened for: a run's number and "work" or "ready"."""
        self._address = address
        self._threads = threads
        self._changes = changes
        self._connection: ServerConnection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tried = 0.0
        self._stopped = False

    async def start(self, *, pooled: bool) -> None:
        """Also again, where the connection was lost."""
        loop = asyncio.get_running_loop()
        is_there = self._connection is not None and self._loop is loop
        if pooled or self._stopped or is_there or not self.interests:
            return
        if self._loop is loop and loop.time() < self._tried + POLL_SECONDS:
            return
        self._forget()
        self._loop, self._tried = loop, loop.time()
        try:
            connection = await loop.run_in_executor(self._threads, self._listen)
        except (psycopg.Error, OSError):
            return  # Whoever waits looks again after a while.
        if self._stopped:
            connection.close()
            return
        self._connection = connection
        loop.add_reader(connection.driver.fileno(), self._hear)
        # What was said before the loop heard it.
        self._changes.notify()

    def _listen(self) -> ServerConnection:
        connection = plain_connect(self._address)
        try:
            connection.execute(f"LISTEN {CHANNEL}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _hear(self) -> None:
        assert self._connection is not None, "the loop hears nothing after it"
        driver = self._connection.driver.pgconn
        try:
            driver.consume_input()
        except psycopg.Error:
            self._forget()
            return
        while (notification := driver.notifies()) is not None:
            if notification.extra.decode() in self.interests:
                self._changes.notify()

    def _forget(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._loop is not None and not self._loop.is_closed():
            with suppress(ValueError, OSError):  # Its socket is closed already.
                self._loop.remove_reader(connection.driver.fileno())
        connection.close()

    def stop(self) -> None:
        self._stopped = True
        self._forget()
