"""The embedded engine of a training: one that does not take its weights is started anew."""

import asyncio
import shutil
from pathlib import Path

import pytest

pytest.importorskip("peft", reason="the extra `train`")

import torch

from holdfast.embedded.model.files import TINY
from holdfast.policy.client import circuit_breaker
from holdfast.policy.client.endpoint import Endpoint
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.training.model.network import Network
from holdfast.training.run import weights
from holdfast.training.run.serving import MODEL, TrainingEngine
from holdfast.weights.version import WeightFolder, WeightsNotTaken


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circuit_breaker, "PROBE_BASE_SECONDS", 0.02)
    monkeypatch.setattr(circuit_breaker, "PROBE_MAX_SECONDS", 0.1)


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
