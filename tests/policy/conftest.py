"""One fake engine for the whole package of tests: it is asked over a real socket."""

from collections.abc import Iterator

import pytest

from holdfast.testing import FakeEngine


@pytest.fixture(scope="session")
def running_engine() -> Iterator[FakeEngine]:
    with FakeEngine(max_model_len=2048) as engine:
        yield engine


@pytest.fixture
def engine(running_engine: FakeEngine) -> FakeEngine:
    running_engine.set_faults()
    running_engine.reset()
    return running_engine
