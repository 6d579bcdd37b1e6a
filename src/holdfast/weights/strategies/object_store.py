"""Sends weights through Ray's object store.

It is for engines on a cluster that share neither a disk nor a network of GPUs. The version is put
into the store once, in buckets of bytes. On each node with engines, one receiver fetches the
buckets once and writes them to `/dev/shm`, while engines sample. Then all engines of that node
reload. The weights travel only as bytes.
"""

import asyncio
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from holdfast.private_files import private_folder
from holdfast.weights.replica import Replica
from holdfast.weights.strategies.disk import ASIDE, KEEP_VERSIONS, DiskStrategy
from holdfast.weights.strategies.strategy import Offer
from holdfast.weights.version import WeightFolder, WeightsNotTaken

BUCKET_BYTES = 64 << 20
RECEIVE_SECONDS = 600.0
STAGE = Path("/dev/shm")  # noqa: S108  # a folder of the run's own is made in it
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class NodeReceiver:
    """A Ray actor that receives a version's bytes and writes them as a folder on its node. Call
    `begin`, then `append` for each bucket in order, then `finish`. The folder exists only after
    `finish`, and is then complete."""

    def __init__(self, stage: str):
        self._stage = Path(stage)
        self._writer: _FolderWriter | None = None

    def begin(self, version: str, files: dict[str, int]) -> None:
        """Begins a version. `files` has the name and size of each file, in the order in which their
        bytes arrive."""
        aside, final = self._stage / f"{ASIDE}{version}", self._stage / version
        self._writer = None
        private_folder(self._stage)
        if not final.exists():
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir()
            self._writer = _FolderWriter(aside, files)

    def append(self, bucket: Any) -> None:
        if self._writer is not None:
            self._writer.write(memoryview(bucket).cast("B"))

    def finish(self, version: str) -> None:
        final = self._stage / version
        if self._writer is not None:
            self._writer.close()
            os.rename(self._stage / f"{ASIDE}{version}", final)
            self._writer = None
        os.utime(final)
        kept = sorted(self._stage.iterdir(), key=lambda path: path.stat().st_mtime)
        for path in kept[:-KEEP_VERSIONS]:
            shutil.rmtree(path, ignore_errors=True)

    def remove(self) -> None:
        shutil.rmtree(self._stage, ignore_errors=True)


class _FolderWriter:
    """Writes a stream of bytes into several files, one after the other."""

    def __init__(self, folder: Path, files: dict[str, int]):
        self._folder = folder
        self._left = {name: size for name, size in files.items() if size}
        for name in files:
            (folder / name).touch()

    def write(self, data: memoryview) -> None:
        while data:
            name, left = next(iter(self._left.items()))
            with (self._folder / name).open("ab") as file:
                file.write(data[:left])
            self._left[name] -= min(left, len(data))
            if not self._left[name]:
                del self._left[name]
            data = data[left:]

    def close(self) -> None:
        for name, left in self._left.items():
            raise ValueError(f"{left} bytes of {name} are missing")


class ObjectStoreStrategy(DiskStrategy):
    """Sends weights through Ray's object store, from a process that is connected to a Ray
    cluster."""

    name = "object-store"

    def __init__(self, *, run: str, is_tied: bool = False, stage: Path = STAGE):
        super().__init__(is_tied=is_tied)
        self._place = stage / f"holdfast-{os.geteuid()}-{run}"
        self._receivers: dict[str, Any] = {}
        self._nodes: dict[Replica, str] = {}

    async def offers(self, replica: Replica) -> Offer:
        # Importing Ray takes seconds and would not connect to a cluster.
        if "ray" not in sys.modules:
            return Offer(False, "this process is connected to no Ray cluster")
        import ray

        if not ray.is_initialized():
            return Offer(False, "this process is connected to no Ray cluster")
        node = _node_of(replica, ray.nodes(), ray.get_runtime_context().get_node_id())
        if node is None:
            return Offer(False, f"{replica.name} is on no node of the Ray cluster")
        offer = await super().offers(replica)
        if offer.works:
            self._nodes[replica] = node
            return Offer(True, "put once, fetched once by each node")
        return offer

    async def start(self, replicas: Sequence[Replica]) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        for node in {self._nodes[replica] for replica in replicas}:
            actor = ray.remote(num_cpus=0)(NodeReceiver)
            here = NodeAffinitySchedulingStrategy(node, soft=False)
            self._receivers[node] = actor.options(scheduling_strategy=here).remote(str(self._place))

    async def prepare(self, version: WeightFolder) -> None:
        """Writes the version's folder on every node, while engines still sample."""
        try:
            await asyncio.to_thread(self._distribute, version)
        except OSError as error:
            raise WeightsNotTaken(f"{version.name} cannot be read: {error}") from error

    def _distribute(self, version: WeightFolder) -> None:
        import ray
        from ray.exceptions import RayError

        files = {path.name: path.stat().st_size for path in _files(version.path)}
        receivers = self._receivers.values()
        try:
            done = [receiver.begin.remote(version.name, files) for receiver in receivers]
            for bucket in _buckets(version.path):
                # This bucket is written while the next one is put.
                reference = ray.put(bucket)
                done += [receiver.append.remote(reference) for receiver in receivers]
            done += [receiver.finish.remote(version.name) for receiver in receivers]
            ray.get(done, timeout=RECEIVE_SECONDS)
        except RayError as error:
            first = str(error).splitlines()[0]
            raise WeightsNotTaken(f"a receiver of {version.name} failed: {first}") from error

    def folder_for(self, version: WeightFolder) -> Path:
        """Returns the version's folder, which has the same path on every node."""
        return self._place / version.name

    async def aclose(self) -> None:
        for receiver in self._receivers.values():
            await receiver.remove.remote()
        self._receivers = {}


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file())


def _buckets(folder: Path) -> Any:
    """Yields the bytes of all files, one file after another, as arrays that Ray's store accepts
    without a copy."""
    import numpy as np

    for path in _files(folder):
        size = path.stat().st_size
        data = np.memmap(path, dtype=np.uint8, mode="r") if size else np.zeros(0, dtype=np.uint8)
        for start in range(0, size, BUCKET_BYTES):
            yield np.asarray(data[start : start + BUCKET_BYTES])


def _node_of(replica: Replica, nodes: Sequence[dict[str, Any]], own: str) -> str | None:
    host = urlsplit(replica.endpoint.url).hostname
    if host in _LOOPBACK:
        return own
    for node in nodes:
        if node["Alive"] and host in (node["NodeManagerAddress"], node["NodeManagerHostname"]):
            return str(node["NodeID"])
    return None
