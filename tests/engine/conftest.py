"""The engine's tests share the rollouts' stage, and one fake engine over a real socket."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "rollout"))

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
