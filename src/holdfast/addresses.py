"""Checks addresses and tokens of servers, for every server and client of ours."""

import ipaddress
import os
from urllib.parse import urlsplit

from holdfast.records.errors import UsageError


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def is_http_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.netloc) and parts.port != 0
    except ValueError:  # The port or the IPv6 address is invalid.
        return False


def secret_in(variable: str, *, option: str) -> str | None:
    """Returns the value of the environment variable `variable`, which the command line's `option`
    names. Returns None if `variable` is empty. Raises `UsageError` if the variable is not set."""
    if not variable:
        return None
    if not (secret := os.environ.get(variable)):
        raise UsageError(f"{option} {variable}: this environment variable is not set")
    return secret
