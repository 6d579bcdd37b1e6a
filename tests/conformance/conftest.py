"""Every engine, started once for all the tests that use it."""

from collections.abc import Iterator

import pytest
from engines import Engine, engines, wait_until_idle

ENGINES = engines()


@pytest.fixture(scope="session", autouse=True)
def _servers() -> Iterator[None]:
    yield
    for engine in ENGINES:
        engine.server.stop()


@pytest.fixture(params=ENGINES, ids=lambda engine: engine.name)
def engine(request: pytest.FixtureRequest) -> Engine:
    """Running and idle."""
    found: Engine = request.param
    found.server.start()
    wait_until_idle(found.server)
    return found
