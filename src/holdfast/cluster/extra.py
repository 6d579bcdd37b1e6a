"""Ray, which only runs on a cluster need. It is imported when it is used."""

import os
from types import ModuleType
from typing import Any

from holdfast.extras import needed_by


def import_ray() -> Any:
    """Ray, quiet: it reports no usage, and prints nothing of its own."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Or it gives notice, at each start, of what it will do about GPUs some day.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    with needed_by("--cluster", extra="ray"):
        import ray
    module: ModuleType = ray
    return module
