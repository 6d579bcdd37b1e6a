"""Evaluations are run as their users run them: pytest on a file, against a real HTTP server."""

from collections.abc import Iterator

import pytest

from holdfast.testing import FakeEngine
from support.evaluation.course import Course


@pytest.fixture(scope="session")
def shared_engine() -> Iterator[FakeEngine]:
    with FakeEngine(mean_length=8) as engine:
        yield engine


@pytest.fixture
def engine(shared_engine: FakeEngine) -> FakeEngine:
    shared_engine.set_faults()
    shared_engine.reset()
    return shared_engine


@pytest.fixture
def course(
    pytester: pytest.Pytester, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> Course:
    for name in ("HOLDFAST_POLICY", "HOLDFAST_API_KEY", "OPENAI_API_KEY", "FIREWORKS_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return Course(pytester, engine)
