"""Signed keys, each for one attempt of one trajectory.

A key cannot be forged, and a key of a past attempt can be told from a key that was never made. The
agent uses the key as an API key. For clients that take no API key, it is part of the URL.

The secret that signs keys can be stored in a file. Then the next gateway recognizes the key of an
agent that outlived the previous gateway.
"""

import base64
import hashlib
import hmac
import secrets
from pathlib import Path

from msgspec import Struct

from holdfast.private_files import stored_secret
from holdfast.records.errors import UsageError

PREFIX = "hf-"
_SIGNATURE_BYTES = 16
SECRET_BYTES = 32


class Bearer(Struct, frozen=True):
    trajectory: str
    epoch: int
    attempt: int
    """The number of the attempt, which is recorded before the key is sent."""
    binding: int = 0
    """A counter of the gateway that makes each key different. Without it, two attempts could have
    the same key, because an attempt that wrote nothing and the next attempt have the same number.
    """


class Keys:
    """Makes and checks keys with one secret. A key that was made with another secret is unknown."""

    def __init__(self, secret: bytes | None = None):
        self._secret = secret or secrets.token_bytes(SECRET_BYTES)

    def make(self, bearer: Bearer) -> str:
        numbers = f"{bearer.epoch}.{bearer.attempt}.{bearer.binding}"
        claims = f"{numbers}.{bearer.trajectory}".encode()
        return PREFIX + _text(self._sign(claims) + claims)

    def read(self, key: str) -> Bearer | None:
        """Returns the claims of a key, or None if it was not made with this secret."""
        raw = _bytes(key.removeprefix(PREFIX)) if key.startswith(PREFIX) else None
        if raw is None or len(raw) <= _SIGNATURE_BYTES:
            return None
        signature, claims = raw[:_SIGNATURE_BYTES], raw[_SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, self._sign(claims)):
            return None
        epoch, attempt, binding, trajectory = claims.decode().split(".", 3)
        return Bearer(trajectory, int(epoch), int(attempt), int(binding))

    def _sign(self, claims: bytes) -> bytes:
        return hmac.digest(self._secret, claims, hashlib.sha256)[:_SIGNATURE_BYTES]


def load_or_create_secret(path: Path) -> bytes:
    """Returns the secret in the file. Creates a missing file, which only its owner can read.
    Processes that create it at the same time get the same secret."""
    try:
        secret = stored_secret(path, secrets.token_bytes(SECRET_BYTES))
    except OSError as error:
        raise UsageError(f"the file of the keys' secret, {path}: {error.strerror}") from error
    if len(secret) != SECRET_BYTES:
        raise UsageError(
            f"{path} is not a secret of a gateway: that has {SECRET_BYTES} bytes; remove it, and "
            "agents with older keys have to come anew"
        )
    return secret


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _bytes(text: str) -> bytes | None:
    """Decodes a part of a key. Returns None for any encoding but the canonical one, so that a key
    has only one form."""
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        return None
    return raw if _text(raw) == text else None
