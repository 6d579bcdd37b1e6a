"""A checkpoint has everything that a trainer needs to continue, as safetensors and JSON.

A checkpoint is a folder. Its files are written and synced in a temporary folder. The last file is a
manifest of sizes and digests. Then the folder gets its final name. A folder with a final name is
therefore complete, and the manifest shows any later damage. No file is pickled.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct
from torch import Tensor

from holdfast import crashpoint
from holdfast.records.errors import HoldfastError
from holdfast.weights.strategies.disk import sync_path

MANIFEST = "manifest.json"
STATE = "state.json"
_PREFIX = "step-"
_ASIDE = ".partial-"
_CHUNK_BYTES = 2**22


class CheckpointDamaged(HoldfastError):
    """A checkpoint differs from its manifest."""


class TrainerState(Struct, frozen=True):
    """The part of a trainer's state that is not tensors."""

    run: str
    step: int
    """The number of the run's optimizer steps whose results the checkpoint holds."""
    model: str
    """The digest of the model from which training began."""
    settings: dict[str, object]
    """The settings of the training. A resume with other settings is refused."""
    version: str
    """The name under which engines know the weights."""
    digest: str
    """The digest of these weights."""
    folder: int = 1
    """The number that the run gave to the folder."""
    skipped_updates: int = 0


class Checkpoint(Struct, frozen=True):
    """The stored state of one step."""

    state: TrainerState
    tensors: dict[str, dict[str, Tensor]]
    """The tensors of each file: weights, optimizer, random."""


class _Entry(Struct, frozen=True):
    size: int
    sha256: str


def save(folder: Path, checkpoint: Checkpoint, *, keep: int) -> Path:
    """Writes `folder`/step-N and keeps the newest `keep` checkpoints up to this one. Returns its
    path.

    Removes checkpoints of later steps. If such checkpoints exist, they were damaged, and training
    continued from an earlier checkpoint.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{_PREFIX}{checkpoint.state.step:08d}"
    aside = folder / f"{_ASIDE}{name}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    _write(aside, checkpoint)
    crashpoint.reach("checkpoint.written")
    final = folder / name
    if final.exists():  # The step was trained again, so the existing folder is equal or damaged.
        os.rename(final, folder / f"{_ASIDE}old-{name}")
    os.rename(aside, final)
    sync_path(folder)
    crashpoint.reach("checkpoint.renamed")
    _remove_old(folder, final, keep=keep)
    return final


def newest(folder: Path) -> tuple[Checkpoint, list[str]] | None:
    """Returns the newest whole checkpoint, and for each newer one what is wrong with it. Returns
    None if there is no checkpoint. Raises `CheckpointDamaged` if all checkpoints are damaged."""
    problems: list[str] = []
    for path in reversed(_all(folder)):
        try:
            return load(path), problems
        except CheckpointDamaged as error:
            problems.append(str(error))
    if problems:
        raise CheckpointDamaged(
            f"{'; '.join(problems)}; none is whole: bring one back, or move {folder} away, and its "
            "steps are trained again from the recorded rollouts"
        )
    return None


def newest_state(folder: Path) -> TrainerState | None:
    """Returns the state of the newest checkpoint whose state file can be read. Does not check the
    tensors."""
    for path in reversed(_all(folder)):
        try:
            return msgspec.json.decode((path / STATE).read_bytes(), type=TrainerState)
        except (OSError, msgspec.MsgspecError):
            continue  # `newest` reports what is wrong with it.
    return None


def load(path: Path) -> Checkpoint:
    """Loads a checkpoint. Raises `CheckpointDamaged`, with the name of the missing or altered
    file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    manifest = _read_manifest(path)
    for name, entry in manifest.items():
        _check(path / name, entry)
    try:
        state = msgspec.json.decode((path / STATE).read_bytes(), type=TrainerState)
        tensors = {
            name.removesuffix(".safetensors"): load_file(path / name)
            for name in manifest
            if name.endswith(".safetensors")
        }
    except (msgspec.MsgspecError, SafetensorError, OSError) as error:
        raise CheckpointDamaged(f"checkpoint {path} cannot be read: {error}") from error
    return Checkpoint(state, tensors)


def _write(aside: Path, checkpoint: Checkpoint) -> None:
    from safetensors.torch import save_file

    for name, tensors in checkpoint.tensors.items():
        save_file(
            {key: t.contiguous() for key, t in tensors.items()}, aside / f"{name}.safetensors"
        )
    (aside / STATE).write_bytes(msgspec.json.encode(checkpoint.state, order="deterministic"))
    manifest = {}
    for path in sorted(aside.iterdir()):
        sync_path(path)
        manifest[path.name] = {"size": path.stat().st_size, "sha256": _digest(path)}
        crashpoint.reach("checkpoint.file")
    (aside / MANIFEST).write_text(json.dumps(manifest, indent=1))
    sync_path(aside / MANIFEST)
    sync_path(aside)


def _all(folder: Path) -> list[Path]:
    """Returns the paths of the checkpoints, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.name.startswith(_PREFIX))


def _remove_old(folder: Path, newest: Path, *, keep: int) -> None:
    listed = _all(folder)
    end = listed.index(newest) + 1
    for path in [*listed[: max(end - keep, 0)], *listed[end:]]:
        shutil.rmtree(path, ignore_errors=True)
    for path in folder.iterdir():
        if path.name.startswith(_ASIDE):
            shutil.rmtree(path, ignore_errors=True)


def _read_manifest(path: Path) -> Mapping[str, _Entry]:
    try:
        return msgspec.json.decode((path / MANIFEST).read_bytes(), type=dict[str, _Entry])
    except (OSError, msgspec.MsgspecError) as error:
        raise CheckpointDamaged(f"checkpoint {path}: {MANIFEST} cannot be read: {error}") from error


def _check(path: Path, entry: _Entry) -> None:
    if not path.is_file():
        raise CheckpointDamaged(f"checkpoint {path.parent}: {path.name} is missing")
    if path.stat().st_size != entry.size or _digest(path) != entry.sha256:
        raise CheckpointDamaged(f"checkpoint {path.parent}: {path.name} was altered")


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
