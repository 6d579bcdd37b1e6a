"""Weights through Ray's object store into two real vLLM on the CPU, on a simulated Ray cluster.

Both engines are on the trainer's node: all nodes of a simulated cluster have one address.
"""

import asyncio
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif("HOLDFAST_VLLM_PYTHON" not in os.environ, reason="make vllm"),
    pytest.mark.skipif(
        find_spec("ray") is None or find_spec("peft") is None, reason="the extras `ray`, `train`"
    ),
]


def test_two_engines_get_each_version_and_serve_it(tmp_path: Path) -> None:
    import ray

    from support.cluster.simulated import SimulatedCluster

    servers = two_servers()
    try:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda server: server.start(), servers))
        with SimulatedCluster(1) as cluster:
            ray.init(address=cluster.address, log_to_driver=False)
            try:
                asyncio.run(publish_twice([server.url for server in servers], tmp_path))
            finally:
                ray.shutdown()
    finally:
        for server in servers:
            server.stop()


def two_servers():
    import holdfast
    from holdfast.weights.strategies.disk import WORKER
    from support.conformance.engines import TINY
    from support.conformance.vllm_server import VllmServer

    environment = {
        "PYTHONPATH": str(Path(holdfast.__file__).parents[1]),
        # Both would compute on the first core.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "TORCHINDUCTOR_CACHE_DIR": f"{tempfile.gettempdir()}/holdfast-inductor-{os.geteuid()}",
    }
    options = ("--worker-extension-cls", WORKER, "--logprobs-mode", "processed_logprobs")
    python = Path(os.environ["HOLDFAST_VLLM_PYTHON"])
    return [
        VllmServer(python, lambda: TINY, longest=1024, options=options, environment=environment)
        for _ in range(2)
    ]


async def publish_twice(urls: list[str], folder: Path) -> None:
    import torch

    from holdfast.embedded.model.files import TINY
    from holdfast.policy.client.replicas import EnginePolicy
    from holdfast.training.model.network import Network
    from holdfast.training.run import weights
    from holdfast.weights.version import WeightFolder

    network, lines = Network(TINY), []
    policy = EnginePolicy(urls, "tiny", is_trained=True, notify=lines.append)
    await policy.check()
    sync = await weights.connect_sync(
        policy, model=TINY, run="r", wanted="object-store", report=lines.append
    )
    try:
        for step in range(1, 4):
            with torch.no_grad():
                for parameter in network.parameters.values():
                    parameter.add_(torch.randn_like(parameter) * 0.02)
            path = weights.write_folder(folder, f"step-{step}", network)
            digest = weights.digest_of(dict(network.parameters))
            scores = weights.score(network)
            version = WeightFolder(path.name, path, digest, scores=scores)
            await (sync.publish_first(version) if step == 1 else sync.publish(version))
            assert [endpoint.weights for endpoint in policy.endpoints] == [path.name] * 2, lines
            assert len(sync.probes) == 2, "both were compared with the trainer"
        assert any("object-store (put once" in line for line in lines), lines
    finally:
        await sync.aclose()
        await policy.aclose()
