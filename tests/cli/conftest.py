import pytest

from holdfast.testing import FakeEngine
from support.cli.shell import CommandLine


@pytest.fixture(scope="module")
def module_engine():
    with FakeEngine(mean_length=10) as engine:
        yield engine


@pytest.fixture
def engine(module_engine):
    """One process for a whole module, without faults and counting from zero."""
    module_engine.set_faults()
    module_engine.reset()
    return module_engine


@pytest.fixture
def shell(tmp_path, engine):
    return CommandLine(tmp_path, engine)
