"""Tokens of servers that listen for this machine alone, in files that only their user can read.

A server at loopback that was given no token takes that of its port. It is made once, and kept: the
next server at the port has the same. The commands of the same user read it there, so nobody has to
pass it on; other programs read the file.
"""

import os
import secrets
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from holdfast.addresses import is_loopback
from holdfast.private_files import private_folder, read_private, stored_secret
from holdfast.records.encoding.redaction import hide
from holdfast.records.errors import UsageError


def token_file(port: int) -> Path:
    return Path(tempfile.gettempdir()) / f"holdfast-tokens-{os.geteuid()}" / str(port)


def loopback_token(port: int) -> str:
    """The token of a server that listens at this port of this machine."""
    path = token_file(port)
    try:
        private_folder(path.parent)
        token = stored_secret(path, secrets.token_urlsafe(24).encode()).decode()
    except OSError as error:
        raise UsageError(
            f"the server's token cannot be kept in {path}: {error.strerror}; set TMPDIR to another "
            "folder, or give the server a token"
        ) from error
    hide(token)
    return token


def known_token(url: str) -> str | None:
    """The token of the server at this address, if it is one of this user's on this machine. An
    address with credentials of its own needs none."""
    parts = urlsplit(url)
    if "@" in parts.netloc or not is_loopback(parts.hostname or ""):
        return None
    try:
        token = read_private(token_file(parts.port or 80)).decode()
    except OSError:
        return None
    hide(token)
    return token
