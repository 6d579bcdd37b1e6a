"""Decides which environment variables are passed to the processes of a cluster. The list is
explicit and is shown to the user.

The values of secrets, and of variables that the user named, are not shown. Variables go to a
process with its job, and not by Ray's `runtime_env`, because everyone who can look at the cluster
may read `runtime_env`.
"""

import os
from collections.abc import Iterable, Mapping

from holdfast.records.encoding.redaction import hide, hide_variables, is_secret_name

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
"""Variables that are never passed to other processes of the cluster."""
MAX_SHOWN = 80


def traveling(
    names: Iterable[str] = (), *, environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Returns the variables of this process that are passed on: variables on the list, and
    variables in `names`."""
    wanted = {*NAMES, *names}
    return {
        name: value
        for name, value in sorted(environment.items())
        if (name in wanted or name.startswith(PREFIXES)) and name not in LOCAL
    }


def describe(variables: Mapping[str, str], *, named: Iterable[str] = ()) -> str:
    """Returns the variables as one line, without the values of secrets and of variables in
    `named`."""
    hidden = set(named)
    shown = (
        f"{name}={'(hidden)' if is_secret_name(name) or name in hidden else _shown(value)}"
        for name, value in variables.items()
    )
    return ", ".join(shown) or "none"


def hide_secrets(variables: Mapping[str, str], *, named: Iterable[str] = ()) -> None:
    """Keeps the secrets among the variables out of all messages of Holdfast. A variable in `named`
    counts as secret if its value looks like one."""
    for name, value in variables.items():
        if is_secret_name(name):
            hide(value)
    hide_variables({name: variables[name] for name in named if name in variables})


def _shown(value: str) -> str:
    # A proxy's user and password precede its host, with or without a scheme.
    _, at, after = value.rpartition("@")
    value = f"…@{after}" if at else value
    return value if len(value) <= MAX_SHOWN else f"{value[:MAX_SHOWN]}…"
