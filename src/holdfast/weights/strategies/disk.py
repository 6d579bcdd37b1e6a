"""Sends weights through a folder of safetensors that engine and trainer both see.

The engine reads the folder at its reload call. The folder is whole and synced before an engine is
asked to read it. It may be a copy on `/dev/shm`, which costs two passes over memory and no disk.
The last two versions are kept, because an engine that comes back while the next version is written
reads the previous one.
"""

import asyncio
import os
import shutil
from pathlib import Path

from holdfast import crashpoint
from holdfast.private_files import private_folder
from holdfast.records.errors import UsageError
from holdfast.weights.replica import DEV_MODE, UPDATE_SECONDS, EngineKind, Replica
from holdfast.weights.strategies.strategy import Offer, WeightStrategy
from holdfast.weights.version import WeightFolder, size_of

KEEP_VERSIONS = 2
ASIDE = ".partial-"
WORKER = "holdfast.weights.vllm_worker.WeightWorker"
_ROUTE = "/update_weights_from_disk"


class DiskStrategy(WeightStrategy):
    """Sends weights through a folder. `stage` is a separate folder from which engines read. With
    None, they read the trainer's own folder."""

    name = "disk"

    def __init__(self, *, stage: Path | None = None, is_tied: bool = False):
        """`is_tied` says whether the head of the model shares its weights with the embedding."""
        self._stage = stage
        self._is_tied = is_tied

    async def offers(self, replica: Replica) -> Offer:
        if replica.kind is EngineKind.VLLM:
            return await self._offered_by_vllm(replica)
        if replica.kind is EngineKind.OTHER or not await replica.has_route(_ROUTE):
            return Offer(False, f"{replica.name} has no {_ROUTE}")
        return Offer(True, "it reads a folder")

    async def _offered_by_vllm(self, replica: Replica) -> Offer:
        if not replica.workers and not await replica.has_route("/collective_rpc"):
            return Offer(False, f"{replica.name} takes no reload: {DEV_MODE}")
        if self._is_tied and replica.device == "cpu" and not replica.workers:
            return Offer(
                False,
                f"{replica.name} would answer 200 and keep its old head: on a CPU, vLLM reloads no "
                f"tied embedding; start it with --worker-extension-cls {WORKER}",
            )
        return Offer(True, "it reads a folder")

    async def prepare(self, version: WeightFolder) -> None:
        if self._stage is not None:
            await asyncio.to_thread(stage_folder, version, self._stage)

    def folder_for(self, version: WeightFolder) -> Path:
        """Returns the path of the folder from which engines read the version."""
        folder = version.path if self._stage is None else self._stage / version.name
        return folder.resolve()

    async def send_one(self, version: WeightFolder, replica: Replica) -> None:
        path = str(self.folder_for(version))
        if replica.kind is EngineKind.EMBEDDED:
            # Requests in flight are computed again, so their next tokens come from the new weights.
            body: dict[str, object] = {"path": path, "version": version.name, "reset_cache": True}
            await replica.post(_ROUTE, body, seconds=UPDATE_SECONDS)
        elif replica.kind is EngineKind.SGLANG:
            body = {"model_path": path, "weight_version": version.name, "flush_cache": True}
            await replica.post(_ROUTE, body, seconds=UPDATE_SECONDS)
        else:
            method = "holdfast_load" if replica.workers else "reload_weights"
            body = {"method": method, "kwargs": {"weights_path": path}}
            await replica.post("/collective_rpc", body, seconds=UPDATE_SECONDS)
            crashpoint.reach("weights.reloaded")
            await replica.name_version(version.name)

    async def aclose(self) -> None:
        if self._stage is not None:
            await asyncio.to_thread(shutil.rmtree, self._stage, ignore_errors=True)


def check_stage(stage: Path, model: Path) -> None:
    """Raises `UsageError` if the folder is too small for two versions or cannot be made."""
    try:
        private_folder(stage)
        free = shutil.disk_usage(stage).free
    except (OSError, UsageError) as error:
        raise UsageError(f"{stage} cannot be used for weights: {error}") from error
    needed = KEEP_VERSIONS * size_of(model)
    if free < needed:
        raise UsageError(
            f"{stage} has {free / 1e9:.2f} GB free, and two versions of the weights take "
            f"{needed / 1e9:.2f} GB: name another folder with --weight-dir"
        )


def stage_folder(version: WeightFolder, stage: Path) -> None:
    """Copies the version to the stage, completely or not at all. Removes older versions, except the
    one before."""
    private_folder(stage)
    final, aside = stage / version.name, stage / f"{ASIDE}{version.name}"
    if not final.exists():
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        for file in version.path.iterdir():
            if file.is_file():
                shutil.copyfile(file, aside / file.name)
        sync_folder(aside)
        crashpoint.reach("weights.staged")
        os.rename(aside, final)
        sync_path(stage)
    os.utime(final)
    kept = sorted(stage.iterdir(), key=lambda path: path.stat().st_mtime)[-KEEP_VERSIONS:]
    for path in stage.iterdir():
        if path not in kept:
            shutil.rmtree(path, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Flushes the files of a folder, and the folder itself, to disk."""
    for path in folder.iterdir():
        if path.is_file():
            sync_path(path)
    sync_path(folder)


def sync_path(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
