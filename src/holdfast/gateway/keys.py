"""Keys: which trajectory a call belongs to, and which attempt of it.

A key is signed: it cannot be made up, and one of an attempt that is over is told from one that
never was. It is an API key to the agent, and a part of the address for clients that take no key.
"""

import base64
import hashlib
import hmac
import secrets

from msgspec import Struct

PREFIX = "hf-"
_SIGNATURE = 16


class Bearer(Struct, frozen=True):
    trajectory: str
    epoch: int
    attempt: int
    binding: int = 0
    """The gateway's own count: an attempt that wrote nothing has the number of the next one."""


class Keys:
    """Made and checked with one secret; another gateway's keys are unknown here."""

    def __init__(self, secret: bytes | None = None):
        self._secret = secret or secrets.token_bytes(32)

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


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _bytes(text: str) -> bytes | None:
    """None also for another spelling of the same bytes: a key has one."""
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        return None
    return raw if _text(raw) == text else None
