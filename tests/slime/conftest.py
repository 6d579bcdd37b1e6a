"""What tests of slime's plug-in share."""

import pytest

from holdfast.testing import FakeEngine
from support.paths import TESTS
from support.slime.arguments import arguments

PACKAGE = TESTS / "support" / "slime" / "package"


@pytest.fixture(scope="module")
def engine():
    with FakeEngine(mean_length=6) as engine:
        yield engine


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    """slime's documented `Sample` in place of the package."""
    monkeypatch.syspath_prepend(str(PACKAGE))


@pytest.fixture
def opened(tmp_path, engine):
    """Data sources with these arguments, closed at the end."""
    sources = []

    def open_source(**more):
        import holdfast.slime

        args = arguments(tmp_path, engine.url, **more)
        sources.append(holdfast.slime.DataSource(args))
        return args, sources[-1]

    yield open_source
    for source in sources:
        source.close()
