"""One fake engine over a real socket for all tests of the engine."""

from collections.abc import Iterator

import pytest

from holdfast.testing import FakeEngine


@pytest.fixture(scope="session")
def served_engine() -> Iterator[FakeEngine]:
    with FakeEngine(max_model_len=400, mean_length=8) as engine:
        yield engine


@pytest.fixture
def served(served_engine: FakeEngine) -> FakeEngine:
    served_engine.set_faults()
    served_engine.reset()
    return served_engine
