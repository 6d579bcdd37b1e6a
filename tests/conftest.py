"""What all tests share: the exhaustive ones run only when asked for."""

import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["pytester"]  # Only here: pytest takes it from no other conftest.

settings.register_profile(
    "default",
    deadline=None,  # Time on a busy machine is no property of the code.
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)
settings.load_profile("default")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("HOLDFAST_EXHAUSTIVE") == "1":
        return
    skip = pytest.mark.skip(reason="exhaustive: set HOLDFAST_EXHAUSTIVE=1")
    for item in items:
        if "exhaustive" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="module", autouse=True)
def _small_collections() -> Iterator[None]:
    """Many tests collect garbage to see what is left of a run. What was imported until now, torch
    and its like, is nobody's garbage, and looking at it each time cost minutes."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
