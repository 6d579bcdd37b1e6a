"""Weights into engines: how long it takes against the bare file, and how long requests stand still.

Files of 200 MB by default (`HOLDFAST_BENCH_MB`), on /dev/shm.
"""

import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from result import Result

from holdfast.policy.client.replicas import EnginePolicy
from holdfast.weights.strategies.disk import DiskStrategy, sync_folder
from holdfast.weights.strategies.object_store import ObjectStoreStrategy
from holdfast.weights.sync import WeightSync
from holdfast.weights.version import WeightFolder
from support.weights.fake_engine.engine import (  # type: ignore[import-not-found]
    WeightedEngine,
)
from support.weights.fake_engine.weights import (  # type: ignore[import-not-found]
    WeightOptions,
    read_folder,
)

MEGABYTES = int(os.environ.get("HOLDFAST_BENCH_MB", "200"))
SHM = Path("/dev/shm")
REPEATS = 3


def measure() -> Iterator[Result]:
    os.environ["PYTHONPATH"] = sys.path[0]  # For the processes of engines.
    folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-", dir=SHM if SHM.exists() else None))
    try:
        yield from asyncio.run(_measure(folder))
        yield asyncio.run(_measure_store(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _measure(folder: Path) -> list[Result]:
    versions = [_version(folder / "out", step) for step in range(REPEATS + 1)]
    bare = min(_bare(versions[0], folder / "bare") for _ in range(REPEATS))
    taken, still = [], []
    with WeightedEngine(weights=WeightOptions(worker=True)) as engine:
        policy = EnginePolicy(engine.url, engine.model)
        await policy.check()
        sync = WeightSync(policy, [DiskStrategy(stage=folder / "stage")])
        await sync.start()
        for version in versions:
            began = time.monotonic()
            await sync.publish_first(version)
            taken.append(time.monotonic() - began)
            still.append(sync.times.stood_still / sync.times.sent)
        await sync.aclose()
        await policy.aclose()
    ratio = min(taken) / bare
    return [
        Result(
            "weights: disk on /dev/shm, against write and read",
            ratio,
            "x",
            "≤ 2",
            f"{MEGABYTES} MB: {min(taken):.2f} s, bare {bare:.2f} s",
        ),
        Result(
            "weights: requests stand still, against the transfer",
            min(still),
            "x",
            "≤ 1.3",
            "from the pause to the resume; the transfer is the reload",
        ),
    ]


async def _measure_store(folder: Path) -> Result:
    """Until the version is on the node of two engines; the baseline puts the bytes once, gets them
    once and looks at each. What the engines read afterwards is measured as disk."""
    import numpy as np
    import ray

    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    version = _version(folder / "store", 0)
    data = np.fromfile(version.path / "model.safetensors", dtype=np.uint8)
    bare = []
    for _ in range(REPEATS):
        began = time.monotonic()
        ray.get(ray.put(data)).sum()
        bare.append(time.monotonic() - began)
    way = ObjectStoreStrategy(run="bench", stage=folder / "nodes")
    taken = []
    weights = WeightOptions(worker=True)
    with WeightedEngine(weights=weights) as one, WeightedEngine(weights=weights) as other:
        policy = EnginePolicy([one.url, other.url], one.model)
        await policy.check()
        sync = WeightSync(policy, [way])
        await sync.start()
        for step in range(1, REPEATS + 1):
            await sync.publish_first(_version(folder / "store", step))
            taken.append(sync.times.prepared)
        await sync.aclose()
        await policy.aclose()
    ray.shutdown()
    ratio = min(taken) / min(bare)
    detail = f"{MEGABYTES} MB: {min(taken):.2f} s until it is on the node, bare {min(bare):.2f} s"
    return Result("weights: object store, against put and get", ratio, "x", "≤ 1.5", detail)


def _version(parent: Path, step: int) -> WeightFolder:
    path = parent / f"step-{step}"
    path.mkdir(parents=True)
    data = os.urandom(1 << 20) * MEGABYTES
    entry = {"dtype": "F32", "shape": [len(data) // 4], "data_offsets": [0, len(data)]}
    header = json.dumps({"weight": entry}).encode()
    with (path / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.write(data)
    return WeightFolder(path.name, path, str(step))


def _bare(version: WeightFolder, folder: Path) -> float:
    """Writes the file and reads it, as the engine does: all of it, with its digest."""
    data = (version.path / "model.safetensors").read_bytes()
    shutil.rmtree(folder, ignore_errors=True)
    began = time.monotonic()
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(data)
    sync_folder(folder)
    read_folder(folder)
    taken = time.monotonic() - began
    shutil.rmtree(folder)
    return taken
