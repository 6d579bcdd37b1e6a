"""Where a journal on PostgreSQL is, and what its server reports, in our words.

No message, log or record names more of a URL than `ServerAddress.name`: that has no password.

An outage is no failure: the connection is made again, the outcome of what was under way is looked
up, and only then is anything decided. What is left is named with what to do about it.
"""

import os
import re
import shlex
from getpass import getuser
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

import psycopg
from msgspec import Struct

from holdfast.records.encoding.redaction import public_address
from holdfast.records.errors import (
    JournalError,
    JournalFull,
    JournalUnreachable,
    NotAJournal,
    UsageError,
)

CONNECT_SECONDS = 15.0
"""How long a server that cannot be reached is tried, before anything has worked."""
OUTAGE_SECONDS = 300.0
"""How long writes wait for a server that was there."""
_OWN = ("allow_fsync_off", "allow_synchronous_commit_off", "connect_timeout", "outage")
"""Parameters of ours, which the driver would send to the server."""


class ServerAddress(Struct, frozen=True):
    """Where a journal is."""

    url: str = ""
    """For the driver, without the password and without our own parameters."""
    name: str = ""
    """For everyone: no parameter of it is a secret."""
    password: str | None = None
    """None: the driver looks for it where libpq does (PGPASSWORD, PGPASSFILE, ~/.pgpass)."""
    connect_seconds: float = CONNECT_SECONDS
    outage_seconds: float = OUTAGE_SECONDS
    allow_fsync_off: bool = False
    allow_synchronous_commit_off: bool = False

    def __repr__(self) -> str:
        return f"ServerAddress({self.name!r})"


taken_passwords: dict[str, str] = {}
"""Of URLs that were cut out of a command line, by what is left of the URL."""


def address_of(where: str) -> ServerAddress:
    """`UsageError` for a URL that no server could be reached by."""
    try:
        bare, password = _parted(where)
        parts = urlsplit(bare)
        if "," not in parts.netloc:
            _ = parts.port
        query = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:  # Its text may quote a part of the password.
        raise UsageError(
            f"journal {public_address(where)} is no URL: check the port and the parameters; in a "
            "password, write / as %2F, ? as %3F, # as %23, @ as %40, % as %25"
        ) from None
    others = dict(query)
    own = {name: others.pop(name) for name in _OWN if name in others}
    return ServerAddress(
        url=_joined(parts._replace(query=urlencode(others, quote_via=quote))),
        name=public_address(where),
        password=password if password is not None else taken_passwords.get(bare),
        connect_seconds=_seconds(own, "connect_timeout", CONNECT_SECONDS),
        outage_seconds=_seconds(own, "outage", OUTAGE_SECONDS),
        allow_fsync_off=_switch(own, "allow_fsync_off"),
        allow_synchronous_commit_off=_switch(own, "allow_synchronous_commit_off"),
    )


def keep_password(where: str) -> str:
    """Takes the password out of a URL, for this process alone: the URL may then go anywhere."""
    bare, password = _parted(where)
    if password is not None:
        taken_passwords[bare] = password
    return bare


def _parted(where: str) -> tuple[str, str | None]:
    """The URL without its password, and that. By hand: `urlsplit` refuses brackets in a password,
    in words that quote it."""
    scheme, _, rest = where.partition("://")
    place, mark, query = rest.partition("?")
    netloc, slash, path = place.partition("/")
    user, at, hosts = netloc.rpartition("@")
    name, colon, password = user.partition(":")
    pairs = [pair.partition("=") for pair in query.split("&")]
    in_query = [value for key, _, value in pairs if key == "password"]
    if not colon and not in_query:
        return where, None
    kept = "&".join("".join(pair) for pair in pairs if pair[0] != "password")
    bare = f"{scheme}://{name}{at}{hosts}{slash}{path}{mark if kept else ''}{kept}"
    return bare, unquote(in_query[-1] if in_query else password)


def _joined(parts: SplitResult) -> str:
    """Without a host, `urlunsplit` would leave the slashes out."""
    url = urlunsplit(parts)
    return url if "://" in url else url.replace(":/", ":///", 1)


def hide_password(text: str, address: ServerAddress) -> str:
    """`text` without the password of that address, should something have repeated it."""
    for secret in (address.password, os.environ.get("PGPASSWORD")):
        if secret:
            text = text.replace(secret, "…").replace(quote(secret, safe=""), "…")
    return text


def _seconds(own: dict[str, str], name: str, default: float) -> float:
    value = own.get(name, "")
    if not value:
        return default
    if not re.fullmatch(r"\d+(\.\d+)?", value):
        raise UsageError(f"{name}={value[:50]} in the journal's URL is no number of seconds")
    return float(value)


def _switch(own: dict[str, str], name: str) -> bool:
    value = own.get(name, "no")
    if value not in ("yes", "no"):
        raise UsageError(f"{name}={value[:50]} in the journal's URL: it is yes or no")
    return value == "yes"


# --- what the server reports

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
