"""Weights of a trainer into an engine of its own process: a state dict, and the same logprobs."""

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("peft", reason="the extra `train`")

from holdfast.embedded.model.files import TINY
from holdfast.embedded.model.load import load
from holdfast.embedded.scheduler.engine import DecodeEngine
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.records.errors import UsageError
from holdfast.training.run import weights
from holdfast.training.run.weights import WeightFolder
from holdfast.training.settings import TrainerSettings
from holdfast.training.trainer import Trainer
from holdfast.weights.strategies.in_process import InProcessStrategy
from holdfast.weights.sync import WeightSync
from support.embedded.client import serving


async def published(engine: DecodeEngine, folder: Path) -> WeightSync:
    """A version in which one matrix is another, checked by the trainer's logprobs."""
    trainer = Trainer(TINY, TrainerSettings())
    next(iter(trainer.network.parameters.values())).data.mul_(1.1)
    path = weights.write_folder(folder, "step-1", trainer.network)
    async with serving(engine) as client:
        url = str(client.session._base_url).rstrip("/")
        async with EnginePolicy(url, "tiny") as policy:
            await policy.check()
            sync = WeightSync(policy, [InProcessStrategy({url: engine})])
            await sync.start()
            scores = weights.score(trainer.network)
            await sync.publish_first(WeightFolder("step-1", path, "", scores=scores))
    return sync


def test_an_engine_of_this_process_gets_a_state_dict_and_serves_it(tmp_path: Path) -> None:
    with DecodeEngine(load(TINY), version="step-0") as engine:
        sync = asyncio.run(published(engine, tmp_path))
        assert engine.version == "step-1"
    (probe,) = sync.probes.values()
    assert probe.worst < 1e-4


def test_an_engine_of_another_process_is_not_offered_it() -> None:
    async def body(engine: DecodeEngine) -> None:
        async with serving(engine) as client:
            url = str(client.session._base_url).rstrip("/")
            async with EnginePolicy(url, "tiny") as policy:
                await policy.check()
                with pytest.raises(UsageError, match="another process"):
                    await WeightSync(policy, [InProcessStrategy({})]).start()

    with DecodeEngine(load(TINY), version="step-0") as engine:
        asyncio.run(body(engine))
