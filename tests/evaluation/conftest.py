"""Evaluations are run as their users run them: pytest on a file, against a real HTTP server."""

from collections.abc import Iterator

import pytest

from holdfast.testing import FakeEngine
from support.evaluation.evaluation_project import EvaluationProject


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
def project(
    pytester: pytest.Pytester, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> EvaluationProject:
    for name in ("HOLDFAST_POLICY", "HOLDFAST_API_KEY", "OPENAI_API_KEY", "FIREWORKS_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return EvaluationProject(pytester, engine)
