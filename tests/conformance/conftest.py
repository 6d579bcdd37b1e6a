"""Every engine, started when the first test wants it and stopped after the last."""

import shutil
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from support.conformance.engines import (
    EmbeddedServer,
    Engine,
    RealVllm,
    endless,
    engines,
    wait_until_idle,
)

ENGINES = engines()


def _marks(engine: Engine) -> list[pytest.MarkDecorator]:
    if isinstance(engine.server, RealVllm):
        return [pytest.mark.vllm]
    missing = isinstance(engine.server, EmbeddedServer) and find_spec("torch") is None
    return [pytest.mark.skipif(missing, reason="needs the extra `local`")]


@pytest.fixture(scope="session", autouse=True)
def _servers() -> Iterator[None]:
    yield
    for engine in ENGINES:
        engine.server.stop()
    if endless.cache_info().currsize:
        shutil.rmtree(endless().parent)


@pytest.fixture(
    params=[pytest.param(item, marks=_marks(item), id=item.name) for item in ENGINES],
)
def engine(request: pytest.FixtureRequest) -> Engine:
    """Running and idle."""
    param: Engine = request.param
    param.server.start()
    wait_until_idle(param.server)
    return param
