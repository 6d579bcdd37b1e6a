"""What tests of TRL's plug-ins share."""

import sys
from collections.abc import Iterator

import pytest

from holdfast.testing import FakeEngine
from support.paths import TESTS
from support.weights.fake_engine.engine import WeightedEngine

PACKAGE = TESTS / "support" / "trl" / "package"


@pytest.fixture(scope="module")
def engine() -> Iterator[FakeEngine]:
    with WeightedEngine(dialect="vllm-scale-out", mean_length=4) as engine:
        yield engine


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """TRL's documented interface in place of the package."""
    monkeypatch.syspath_prepend(str(PACKAGE))
    yield
    for name in [name for name in sys.modules if name.startswith(("holdfast.trl", "trl"))]:
        del sys.modules[name]
