"""What tests of weights share."""

import pytest

from holdfast.policy.client import circuit_breaker


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circuit_breaker, "PROBE_BASE_SECONDS", 0.02)
    monkeypatch.setattr(circuit_breaker, "PROBE_MAX_SECONDS", 0.1)
