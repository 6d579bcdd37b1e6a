"""A trainer beside workers on a cluster: it never waits for workers that will not come."""

import asyncio
from argparse import Namespace
from contextlib import asynccontextmanager

import pytest

from holdfast import log_files
from holdfast.cli.commands.cluster import training
from holdfast.cli.commands.cluster.checks import ClusterPlan
from holdfast.engine.stop import Stop
from holdfast.records.errors import HoldfastError, JournalError


@pytest.fixture
def fails(tmp_path, monkeypatch):
    """A function that has the next training's workers end with an error."""
    monkeypatch.setenv(log_files.LOGS, str(tmp_path))

    @asynccontextmanager
    async def connected(*_, **__):
        yield None

    async def check_nodes(*_):
        pass

    def end_with(error: Exception) -> None:
        @asynccontextmanager
        async def opened_journal(where):
            raise error
            yield

        monkeypatch.setattr(training, "opened_journal", opened_journal)

    monkeypatch.setattr(training, "connected", connected)
    monkeypatch.setattr(training, "check", lambda args: ClusterPlan(None, []))
    monkeypatch.setattr(training.TrainingDriver, "check_nodes", check_nodes)
    return end_with


async def train(stop: Stop, error: Exception | None = None) -> None:
    """Waits for the end of the workers, as a trainer without any would."""
    args = Namespace(cluster="auto", run="r", journal="postgresql://me@db/x")
    async with training.rollouts(args, None, stop, on_connected=lambda: None):
        await asyncio.wait_for(stop.event.wait(), 10.0)
        if error is not None:
            raise error


async def test_an_error_that_is_none_of_ours_ends_the_training_and_is_raised(fails):
    stop, error = Stop(), ValueError("nobody thought of that")
    fails(error)
    with pytest.raises(ValueError, match="nobody thought"):
        await train(stop)
    assert stop.fatal is error


async def test_an_error_of_ours_ends_the_training_with_its_reason(fails):
    stop = Stop()
    fails(JournalError("the server is gone"))
    await train(stop)
    assert stop.reason == "the server is gone"


async def test_the_error_of_the_trainer_is_not_replaced(fails):
    fails(ValueError("of the workers"))
    with pytest.raises(HoldfastError, match="of the trainer"):
        await train(Stop(), HoldfastError("of the trainer"))
