"""A secret that belongs to a journal on a server: whoever may use the journal may use it.

Beside a file it would lie in another file; machines that share a server share no folder.
"""

import asyncio
import secrets
from concurrent.futures import ThreadPoolExecutor

from holdfast.journal.postgres import schema
from holdfast.journal.postgres.address import address_of
from holdfast.journal.postgres.connection import Link, ServerConnection, plain_connect

_MAKE = "INSERT INTO holdfast.meta VALUES ($1, $2) ON CONFLICT DO NOTHING"


def load_or_make_secret(where: str, name: str, *, size: int) -> bytes:
    """The secret of that name; the first one to ask makes it. Blocks, also within an event loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, _load_or_make(where, name, size)).result()


async def _load_or_make(where: str, name: str, size: int) -> bytes:
    address = address_of(where)

    async def ready(connection: ServerConnection) -> None:
        await schema.prepare(connection, address)

    link = Link(address, plain_connect, ready)
    try:
        connection = await link.get()
        await connection.execute(_MAKE, name, secrets.token_hex(size))
        found = await connection.fetchval("SELECT value FROM holdfast.meta WHERE name = $1", name)
        return bytes.fromhex(found)
    finally:
        await link.close()
