"""A secret that belongs to a journal on a server: whoever may use the journal may use it.

Beside a file it would lie in another file; machines that share a server share no folder.
"""

import secrets
from functools import partial

from holdfast.journal.postgres import schema
from holdfast.journal.postgres.address import address_of
from holdfast.journal.postgres.connection import Link, plain_connect


def load_or_make_secret(where: str, name: str, *, size: int) -> bytes:
    """The secret of that name; the first one to ask makes it. Blocks, also within an event loop."""
    address = address_of(where)
    link = Link(address, plain_connect, partial(schema.prepare, address=address))
    try:
        connection = link.get()
        connection.execute(
            "INSERT INTO holdfast.meta VALUES (%s, %s) ON CONFLICT DO NOTHING",
            (name, secrets.token_hex(size)),
        )
        row = connection.execute(
            "SELECT value FROM holdfast.meta WHERE name = %s", (name,)
        ).fetchone()
        assert row is not None, "it was just written"
        return bytes.fromhex(row[0])
    finally:
        link.drop()
