"""The engines of a training: those that are down at the start, or do not take their weights."""

import asyncio
import shutil
import threading
from pathlib import Path

import pytest

pytest.importorskip("peft", reason="the extra `train`")

import torch

from holdfast.embedded.model.files import TINY
from holdfast.engine.connect import EngineAddress
from holdfast.engine.running.run_plan import NO_CODE, plan_run
from holdfast.policy.client import circuit_breaker, probe
from holdfast.policy.client.endpoint import Endpoint
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.records.errors import EndpointDown
from holdfast.rollout.processors.processor import as_processor
from holdfast.training.model.network import Network
from holdfast.training.run import weights
from holdfast.training.run.serving import MODEL, TrainingEngine, TrainingEngines
from holdfast.training.settings import TrainingSettings
from holdfast.weights.version import WeightFolder, WeightsNotTaken
from support.records import make_tasks
from support.weights.fake_engine.engine import WeightedEngine


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circuit_breaker, "PROBE_BASE_SECONDS", 0.02)
    monkeypatch.setattr(circuit_breaker, "PROBE_MAX_SECONDS", 0.1)
    monkeypatch.setattr(probe, "PAUSES", ())


def versions(parent: Path) -> tuple[WeightFolder, WeightFolder]:
    network = Network(TINY)
    results = []
    for number in range(2):
        path = weights.write_folder(parent, f"step-{number}", network)
        scores = weights.score(network)
        digest = weights.digest_of(dict(network.parameters))
        results.append(WeightFolder(path.name, path, digest, scores=scores))
        with torch.no_grad():
            for parameter in network.parameters.values():
                parameter.add_(torch.randn_like(parameter) * 0.02)
    return results[0], results[1]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("is_mended", [True, False], ids=["mended", "given up"])
def test_an_engine_that_fails_its_update_again_and_again_is_started_anew(
    tmp_path: Path, is_mended: bool
) -> None:
    """It finds no weights. Started anew, it finds them; or, once more, none, and is given up."""
    lines: list[str] = []
    before, after = versions(tmp_path / "weights")
    file, hidden = after.path / "model.safetensors", tmp_path / "hidden"
    shutil.move(file, hidden)
    pids = []

    async def body() -> None:
        engine = TrainingEngine(before, log=tmp_path / "engine.log", report=lines.append)

        async def restart(endpoint: Endpoint) -> None:
            if is_mended:
                shutil.move(hidden, file)
            pids.append(engine.pid)
            await engine.restart(endpoint)

        async with engine.serve():
            policy = EnginePolicy(
                engine.url, MODEL, patience=150.0 if is_mended else 1.0, notify=lines.append
            )
            await policy.check()
            sync = await weights.connect_sync(
                policy, model=TINY, restart=restart, report=lines.append
            )
            await sync.adopt(before)
            try:
                await engine.publish(sync, after)
                assert policy.endpoints[0].weights == "step-1"
                assert engine.pid not in pids
            finally:
                await sync.aclose()
                await policy.aclose()

    if is_mended:
        asyncio.run(body())
    else:
        with pytest.raises(WeightsNotTaken, match="has been down"):
            asyncio.run(body())
    assert len(pids) == 1, "once is enough"
    assert any("is started anew" in line for line in lines), lines


async def solve(t: object) -> None: ...


@pytest.mark.parametrize("waits", [True, False])
def test_engines_that_are_down_at_the_start_are_waited_for_where_another_part_may_start_them(
    tmp_path: Path, waits: bool
) -> None:
    """A part of a pipeline that ended instead would be started again, and spend `--restarts`."""
    lines: list[str] = []

    async def body(url: str) -> None:
        engines = TrainingEngines(
            plan_run("run", tasks=make_tasks("a"), processor=as_processor(solve), rollout=NO_CODE),
            TrainingSettings(),
            model=TINY,
            renderer=ByteRenderer(),
            address=EngineAddress(urls=(url,), waits=waits, patience=60.0, is_trained=True),
            log=tmp_path / "engine.log",
            report=lines.append,
        )
        async with engines.connected():
            pass

    with WeightedEngine() as engine:
        engine.kill()
        if not waits:
            with pytest.raises(EndpointDown, match="does not answer"):
                asyncio.run(body(engine.url))
            return
        starting = threading.Timer(0.5, engine.start)
        starting.start()
        asyncio.run(body(engine.url))
        starting.join()
    assert lines[0].endswith("waiting for it")
