"""Parses the URL of a journal on PostgreSQL into its parts, its switches, and its name in messages.

Messages, logs and records show only `ServerAddress.name`, which contains no password.
"""

import os
import re
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from msgspec import Struct

from holdfast.records.encoding.redaction import public_address
from holdfast.records.errors import UsageError

CONNECT_SECONDS = 15.0
"""Seconds for which a connection is tried if the server has not answered yet."""
OUTAGE_SECONDS = 300.0
"""Seconds for which writes wait for a server that answered before."""
_OWN = ("allow_fsync_off", "allow_synchronous_commit_off", "connect_timeout", "outage")
"""Our own parameters, which the driver would otherwise send to the server."""


class ServerAddress(Struct, frozen=True):
    """The address of a journal on a server."""

    url: str = ""
    """The URL for the driver, without the password and without our own parameters."""
    name: str = ""
    """The address without secrets, for messages."""
    password: str | None = None
    """The password. With None, the driver looks for it where libpq does (PGPASSWORD, PGPASSFILE,
    ~/.pgpass)."""
    connect_seconds: float = CONNECT_SECONDS
    outage_seconds: float = OUTAGE_SECONDS
    allow_fsync_off: bool = False
    allow_synchronous_commit_off: bool = False

    def __repr__(self) -> str:
        return f"ServerAddress({self.name!r})"


taken_passwords: dict[str, str] = {}
"""The passwords that were removed from URLs, by the URL without its password."""


def address_of(where: str) -> ServerAddress:
    """Parses the URL of a journal. Raises `UsageError` if the URL is invalid."""
    try:
        bare, password = _parted(where)
        parts = urlsplit(bare)
        if "," not in parts.netloc:
            _ = parts.port
        query = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:  # The error's text may quote a part of the password.
        raise UsageError(
            f"journal {public_address(where)} is not a URL: check the port and the parameters; in "
            "a password, write / as %2F, ? as %3F, # as %23, @ as %40, % as %25"
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
    """Returns the URL without its password, so that the URL may be shown. This process remembers
    the password."""
    bare, password = _parted(where)
    if password is not None:
        taken_passwords[bare] = password
    return bare


def _parted(where: str) -> tuple[str, str | None]:
    """Returns the URL without its password, and the password. Does not use `urlsplit`, because
    `urlsplit` refuses brackets in a password with an error that quotes the password."""
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
    """Joins the parts of a URL. Without a host, `urlunsplit` would leave the slashes out."""
    url = urlunsplit(parts)
    return url if "://" in url else url.replace(":/", ":///", 1)


def hide_password(text: str, address: ServerAddress) -> str:
    """Returns `text` with the password of that address, and the password in PGPASSWORD, replaced by
    `…`."""
    for secret in (address.password, os.environ.get("PGPASSWORD")):
        if secret:
            text = text.replace(secret, "…").replace(quote(secret, safe=""), "…")
    return text


def _seconds(own: dict[str, str], name: str, default: float) -> float:
    value = own.get(name, "")
    if not value:
        return default
    if not re.fullmatch(r"\d+(\.\d+)?", value):
        raise UsageError(f"{name}={value[:50]} in the journal's URL is not a number of seconds")
    return float(value)


def _switch(own: dict[str, str], name: str) -> bool:
    value = own.get(name, "no")
    if value not in ("yes", "no"):
        raise UsageError(f"{name}={value[:50]} in the journal's URL: it is yes or no")
    return value == "yes"
