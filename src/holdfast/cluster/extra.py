"""Ray, which only runs on a cluster need. It is imported when it is used."""

import os
from types import ModuleType
from typing import Any

from holdfast.records.errors import UsageError

MISSING = "--cluster needs Ray: pip install '.[ray]' (in the clone)"


def import_ray() -> Any:
    """Ray, quiet: it reports no usage, and prints nothing of its own."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Or it gives notice, at each start, of what it will do about GPUs some day.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise UsageError(MISSING) from error
    module: ModuleType = ray
    return module
