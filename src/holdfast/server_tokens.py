"""Tokens of servers that listen only on this machine, in files that only their user can read.

A server at loopback without a given token takes the token of its port. The token is made once and
kept, so that the next server at the port has the same token. Commands of the same user, and other
programs, read the token from the file. A server locks the file while it runs. Commands send the
token only while the file is locked, because otherwise another program may listen at the port.
"""

import contextlib
import fcntl
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from holdfast.addresses import is_loopback
from holdfast.private_files import private_folder, read_private, stored_secret
from holdfast.records.encoding.redaction import hide
from holdfast.records.errors import UsageError


def token_file(port: int) -> Path:
    return Path(tempfile.gettempdir()) / f"holdfast-tokens-{os.geteuid()}" / str(port)


class LoopbackToken(contextlib.AbstractContextManager["LoopbackToken"]):
    """The token of the server that listens at a port of this machine. Until `close`, the token's
    file is locked, and commands send the token only while it is locked."""

    def __init__(self, port: int):
        path = token_file(port)
        try:
            private_folder(path.parent)
            self.value = stored_secret(path, secrets.token_urlsafe(24).encode()).decode()
            self._file = open(path, "rb")  # noqa: SIM115
            fcntl.flock(self._file, fcntl.LOCK_SH)
        except OSError as error:
            raise UsageError(
                f"the server's token cannot be kept in {path}: {error.strerror}; set TMPDIR to "
                "another folder, or give the server a token"
            ) from error
        hide(self.value)

    def close(self) -> None:
        self._file.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def known_token(url: str) -> str | None:
    """Returns the token of the server at this address, if this user runs a server there now.
    Otherwise, or if the address has its own credentials, returns None."""
    parts = urlsplit(url)
    if "@" in parts.netloc or not is_loopback(parts.hostname or ""):
        return None
    path = token_file(parts.port or 80)
    try:
        token = read_private(path).decode() if _is_locked(path) else None
    except OSError:
        return None
    if token is not None:
        hide(token)
    return token


def _is_locked(path: Path) -> bool:
    """Returns whether a server holds the lock of the file. Each check locks the file for a moment,
    so commands check one after the other."""
    with _opened(path.parent) as folder, _opened(path) as file:
        fcntl.flock(folder, fcntl.LOCK_EX)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
