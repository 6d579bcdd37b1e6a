"""What PostgreSQL reports, in our words, and which of it is an outage.

An outage is no failure: the connection is made again, the outcome of what was under way is looked
up, and only then is anything decided. What is left is named with what to do about it.
"""

import os
import re
import shlex
from getpass import getuser
from urllib.parse import parse_qsl, unquote, urlsplit

import psycopg

from holdfast.journal.postgres.address import ServerAddress, hide_password
from holdfast.records.errors import (
    JournalError,
    JournalFull,
    JournalUnreachable,
    NotAJournal,
)

_CONFLICTS = ("40001", "40P01", "55P03")
"""Serialization failure, deadlock, lock not available: nothing was done, and it may be repeated."""
_OUTAGES = ("08", "57")
_OUTAGE_STATES = ("53300", "25006", "0A000", "25P03", "25P04", "HF001")
"""Too many connections, a standby that refuses a write or a transaction that might, a transaction
that was idle for too long, and our function's own: the writer's batch is not the next one, so that
another connection of the writer has committed it."""
_NO_ENTRY = ("28000", "28P01", "3D000", "42501")


_REFUSALS = (
    (re.compile(r'database ".*" does not exist'), "3D000"),
    (re.compile(r"permission denied for database"), "42501"),
    (re.compile(r"authentication failed|no password supplied|pg_hba\.conf|role .* does not exist"),
     "28000"),
)  # fmt: skip
"""What a server answers to who may not come in: the driver has no state for it."""


def state_of(error: BaseException) -> str:
    if state := getattr(error, "sqlstate", None):
        return str(state)
    if isinstance(error, psycopg.OperationalError):
        text = str(error)
        return next((state for words, state in _REFUSALS if words.search(text)), "")
    return ""


def is_conflict(error: BaseException) -> bool:
    """Whether the transaction was undone for the sake of another one."""
    return state_of(error) in _CONFLICTS


def is_outage(error: BaseException) -> bool:
    """Whether the connection is gone, or the server cannot do anything now."""
    if state := state_of(error):
        return state.startswith(_OUTAGES) or state in _OUTAGE_STATES
    # The first: also a statement that took too long.
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | OSError)


def is_final(error: BaseException) -> bool:
    """Of an attempt to connect: whether another one would fail in the same way."""
    return state_of(error) in _NO_ENTRY or isinstance(error, ValueError)


def explain(error: BaseException, address: ServerAddress) -> JournalError:
    """Any error of the driver, as one line."""
    if isinstance(error, JournalError):
        return error
    state, text = state_of(error), _text(error, address)
    if state in ("53100", "53400", "54000"):
        return JournalFull(
            f"the server of journal {address.name} is full ({text}); free some space there and run "
            "the same command again"
        )
    if state in ("28000", "28P01"):
        return JournalError(
            f"journal {address.name}: the server does not let this user in ({text}); check the "
            "name and the password (PGPASSWORD, or ~/.pgpass)"
        )
    if state == "3D000":
        return JournalError(
            f"journal {address.name}: the server has no such database ({text}); create it with "
            f"`createdb {_database(text)}`, as a user of the server who may"
        )
    if state == "42501":
        return JournalError(f"journal {address.name}: {text}; {_grant(address)}")
    if state in ("42P01", "42883", "42703"):
        return NotAJournal(
            f"journal {address.name}: schema holdfast is not one of ours ({text}); it was not "
            "touched"
        )
    return JournalError(f"journal {address.name}: {text}")


def quoted(name: str) -> str:
    """A role, schema or database as SQL takes it, whatever its name is."""
    return '"' + name.replace('"', '""') + '"'


def role_of(address: ServerAddress) -> str:
    """Who the driver is on the server: it looks in the same places, in the same order."""
    parts = urlsplit(address.url)
    named = unquote(parts.username or "") or dict(parse_qsl(parts.query)).get("user")
    return named or os.environ.get("PGUSER") or getuser()


def _grant(address: ServerAddress) -> str:
    role = quoted(role_of(address))
    return (
        f"let its owner run: GRANT USAGE ON SCHEMA holdfast TO {role}; GRANT SELECT, INSERT, "
        f"UPDATE, DELETE ON ALL TABLES IN SCHEMA holdfast TO {role} (docs/cluster.md has the whole "
        "role)"
    )


def unreachable(error: BaseException, address: ServerAddress) -> JournalUnreachable:
    """A server that has not answered yet could not be reached within its time."""
    return JournalUnreachable(
        f"{_tried(error, address, address.connect_seconds)}; check the address, and that the "
        "server runs; the same command goes on when it does"
    )


def gone(error: BaseException, address: ServerAddress) -> JournalUnreachable:
    """A server that was there did not come back within its time."""
    return JournalUnreachable(
        f"{_tried(error, address, address.outage_seconds)}; what it had confirmed is safe, and the "
        "same command goes on when it is back"
    )


def _tried(error: BaseException, address: ServerAddress, seconds: float) -> str:
    text = _text(error, address)
    return f"journal {address.name} cannot be reached ({text}), tried for {seconds:.0f} s"


def _database(text: str) -> str:
    found = re.search(r'database "(.+?)"', text)
    return "NAME" if found is None else shlex.quote(found[1])


def _text(error: BaseException, address: ServerAddress) -> str:
    """One line, without the password."""
    text = " ".join(str(error).split()) or type(error).__name__
    return hide_password(text, address)[:300]
