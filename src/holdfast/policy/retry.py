"""Limits the retries of one HTTP call, and chooses the delay between them."""

import random
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime

from msgspec import Struct

from holdfast.records.encoding.declared import NamedFields, check_fields


class RetryPolicy(Struct, frozen=True, metaclass=NamedFields):
    """The limits of one call. The call ends after `tries` tries or `deadline` seconds, whichever
    comes first."""

    tries: int = 5
    deadline: float = 3600.0
    try_timeout: float = 1800.0
    base: float = 0.5
    cap: float = 30.0
    stall_timeout: float = 300.0
    """How long a stream may be silent. A stream as a whole has only the deadline."""

    def __post_init__(self) -> None:
        check_fields(self, "retry ")

    def delay(self, failures: int, *, retry_after: float | None = None) -> float:
        """Returns a random delay (full jitter), plus the server's own delay.

        Without jitter, all calls with the same delay would come back in one wave.
        """
        jitter = random.uniform(0, min(self.cap, self.base * 2 ** min(failures - 1, 30)))
        return jitter + (retry_after or 0.0)


def retry_after(headers: Mapping[str, str], *, now: float) -> float | None:
    """Returns the server's delay in seconds, or None. The server sends milliseconds, seconds or an
    HTTP date. The names of `headers` are in lower case."""
    precise = _seconds(headers.get("retry-after-ms", ""), scale=1000)
    if precise is not None:
        return precise
    if (value := headers.get("retry-after")) is None:
        return None
    if (seconds := _seconds(value, scale=1)) is not None:
        return seconds
    try:
        date = parsedate_to_datetime(value)
    except (TypeError, ValueError):
        return None
    # A date without a zone is UTC, as everywhere in HTTP.
    return max(0.0, (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now)


def _seconds(text: str, *, scale: float) -> float | None:
    try:
        value = float(text) / scale
    except ValueError:
        return None
    return value if 0 <= value < 1e9 else None
