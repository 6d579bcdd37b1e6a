"""Tokens of servers that listen for this machine alone, in files that only their user can read.

A server at loopback that was given no token takes that of its port. It is made once, and kept: the
next server at the port has the same. The commands of the same user read it there, so nobody has to
pass it on; other programs read the file. A server locks the file while it runs. Commands send the
token only while the file is locked: otherwise another program listens at the port now.
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
    """The token of a server that listens at this port of this machine. Commands send it until
    `close`."""

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
    """The token of the server at this address, if this user runs one there now. An address with
    credentials of its own needs none."""
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
    """Whether a server runs. Commands ask one after the other, because each locks the file for a
    moment."""
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
