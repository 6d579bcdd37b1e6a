"""Keys: which trajectory a call belongs to, and which attempt of it.

A key is signed: it cannot be made up, and one of an attempt that is over is told from one that
never was. It is an API key to the agent, and a part of the address for clients that take no key.

What signs them may be kept in a file: then the key of an agent which outlives the gateway is known
to the one that is started after it.
"""

import base64
import contextlib
import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

from msgspec import Struct

from holdfast.records.errors import UsageError

PREFIX = "hf-"
_SIGNATURE = 16
_SECRET = 32


class Bearer(Struct, frozen=True):
    trajectory: str
    epoch: int
    attempt: int
    """The number of the attempt, as it is recorded when the key is told."""
    binding: int = 0
    """The gateway's own count: an attempt that wrote nothing has the number of the next one."""


class Keys:
    """Made and checked with one secret; another gateway's keys are unknown here."""

    def __init__(self, secret: bytes | None = None):
        self._secret = secret or secrets.token_bytes(_SECRET)

    def make(self, bearer: Bearer) -> str:
        numbers = f"{bearer.epoch}.{bearer.attempt}.{bearer.binding}"
        words = f"{numbers}.{bearer.trajectory}".encode()
        return PREFIX + _text(self._sign(words) + words)

    def read(self, key: str) -> Bearer | None:
        """Whose key it is; None if it is nobody's."""
        raw = _bytes(key.removeprefix(PREFIX)) if key.startswith(PREFIX) else None
        if raw is None or len(raw) <= _SIGNATURE:
            return None
        signature, words = raw[:_SIGNATURE], raw[_SIGNATURE:]
        if not hmac.compare_digest(signature, self._sign(words)):
            return None
        epoch, attempt, binding, trajectory = words.decode().split(".", 3)
        return Bearer(trajectory, int(epoch), int(attempt), int(binding))

    def _sign(self, words: bytes) -> bytes:
        return hmac.digest(self._secret, words, hashlib.sha256)[:_SIGNATURE]


def kept_secret(path: Path) -> bytes:
    """What is in the file; where there is none, it is made, and only its owner can read it.
    Processes that ask for it at once are given the same."""
    made = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        if not path.exists():
            handle = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(secrets.token_bytes(_SECRET))
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(made, path)
        found, mode = path.read_bytes(), path.stat().st_mode
    except OSError as error:
        raise UsageError(f"the file of the keys' secret, {path}: {error.strerror}") from error
    finally:
        made.unlink(missing_ok=True)
    if len(found) != _SECRET or stat.S_IMODE(mode) & 0o077:
        raise UsageError(
            f"{path} is no secret of a gateway: it has {_SECRET} bytes that nobody but its owner "
            "can read; take it away, and agents that hold older keys have to come anew"
        )
    return found


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _bytes(text: str) -> bytes | None:
    """None also for another spelling of the same bytes: a key has one."""
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        return None
    return raw if _text(raw) == text else None
