"""Decides how many connections one address gets: as many as the limit of open files allows.

Each try holds a connection, and waits for it before any time limit begins. So calls beyond the
limit only wait. None of them fails, and none is sent twice.
"""

import asyncio
import resource
from collections.abc import Callable

_MAX_FILES = 65_536
_MAX_CONNECTIONS = 16_384
"""The most connections to one address. A machine has about 28,000 local ports for each address."""


class Connections:
    """The connections to one address. A try enters this context to take one of them."""

    def __init__(self, most: int | None, *, addresses: int, notify: Callable[[str], None]):
        """`most` is the user's own limit. If it is None, the limit follows from the allowed number
        of open files, which all addresses share, and `notify` gets a line when calls begin to wait.
        `addresses` is the number of addresses."""
        allowed, files = allowed_connections(addresses)
        self._slots = asyncio.Semaphore(most or allowed)
        self._notify = notify
        self._line = (
            f"{allowed:,} requests to one engine are under way, and more wait: the limit of "
            f"{files:,} open files (ulimit -Hn) allows no more"
        )
        if most:
            self._line = ""

    async def __aenter__(self) -> None:
        if self._line and self._slots.locked():
            self._notify(self._line)
            self._line = ""
        await self._slots.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._slots.release()


def allowed_connections(addresses: int) -> tuple[int, int]:
    """Returns the number of connections that this process can open to each address if there are
    `addresses` of them, and the limit of open files.

    First raises the process's limit of open files as far as the system permits, because the usual
    limit of 1,024 is much lower.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = _bounded(hard)
    if _bounded(soft) < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    # The journal, agents' connections and user code get the last quarter.
    share = files * 3 // 4 // addresses
    return max(1, min(_MAX_CONNECTIONS, share)), files


def _bounded(limit: int) -> int:
    return _MAX_FILES if limit == resource.RLIM_INFINITY else min(limit, _MAX_FILES)
