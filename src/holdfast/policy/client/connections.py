"""How many connections one address gets: what the limit of open files allows."""

import resource

_MAX_FILES = 65_536
_MAX_CONNECTIONS = 16_384
"""A machine has about 28,000 local ports for one address."""


def allowed_connections() -> int:
    """Returns the number of connections that this process can open to one address.

    Raises the process's limit of open files first, because the usual 1,024 is far below what
    systems permit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = _bounded(hard)
    if _bounded(soft) < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    # The journal, agents' connections and user code get the last quarter.
    return min(_MAX_CONNECTIONS, files * 3 // 4)


def _bounded(limit: int) -> int:
    return _MAX_FILES if limit == resource.RLIM_INFINITY else min(limit, _MAX_FILES)
