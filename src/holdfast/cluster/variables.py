"""Which environment variables travel to the processes of a cluster: an explicit list, which is
shown. Values of secrets are not.

They go to a process with its job, and not by Ray's `runtime_env`, whose contents anybody may read
who can look at the cluster.
"""

import os
from collections.abc import Iterable, Mapping

from holdfast.records.encoding.redaction import hide

NAMES = (
    "PYTHONPATH",
    "CUDA_HOME",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "ALL_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "all_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
)
PREFIXES = ("HF_", "HOLDFAST_", "PG")
LOCAL = ("HOLDFAST_CRASH",)
"""What is meant for this process alone."""
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL")
MAX_SHOWN = 80


def traveling(
    names: Iterable[str] = (), *, environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Those of this process that are on the list, or are named."""
    wanted = {*NAMES, *names}
    return {
        name: value
        for name, value in sorted(environment.items())
        if (name in wanted or name.startswith(PREFIXES)) and name not in LOCAL
    }


def describe(variables: Mapping[str, str], *, secrets: Iterable[str] = ()) -> str:
    """On one line, with no value of a secret."""
    known = set(secrets)
    shown = (
        f"{name}={'(hidden)' if is_secret(name) or name in known else _shown(value)}"
        for name, value in variables.items()
    )
    return ", ".join(shown) or "none"


def hide_secrets(variables: Mapping[str, str]) -> None:
    """No message of ours will contain them."""
    for name, value in variables.items():
        if is_secret(name):
            hide(value)


def is_secret(name: str) -> bool:
    return any(word in name.upper() for word in _SECRET)


def _shown(value: str) -> str:
    # The proxy's user and password stand before its host.
    before, at, after = value.rpartition("@")
    value = f"…@{after}" if at and "://" in before else value
    return value if len(value) <= MAX_SHOWN else f"{value[:MAX_SHOWN]}…"
