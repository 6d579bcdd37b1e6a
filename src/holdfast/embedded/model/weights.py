"""Gives a running model new weights. All are checked before the first number changes."""

import copy
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.records.errors import UsageError

Plan = list[tuple[Tensor, Tensor]]
"""Pairs of a target tensor and its new content."""
_MAX_NAMED = 3


def read(folder: Path) -> dict[str, Tensor]:
    """Reads all tensors of a folder's safetensors. Raises `UsageError`."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UsageError(f"{folder} has no *.safetensors")
    state: dict[str, Tensor] = {}
    for file in files:
        try:
            state |= load_file(file)
        except (OSError, SafetensorError) as error:
            raise UsageError(f"{file} cannot be read: {error}") from error
    return state


def read_converted(network: Any, folder: Path) -> dict[str, Tensor]:
    """Reads the tensors under the names that the model has in memory. Transformers may write other
    names: the experts of a mixture are many tensors in a file and one in the model. Raises
    `UsageError`."""
    state = read(folder)
    if not set(state) - set(network.state_dict()):
        return state
    try:
        loaded, info = type(network).from_pretrained(
            folder,
            config=copy.deepcopy(network.config),
            local_files_only=True,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(f"{folder} does not fit the model: {error}".splitlines()[0]) from error
    _check_names(unknown=info["unexpected_keys"], missing=info["missing_keys"])
    if wrong := sorted(map(str, info["mismatched_keys"])):
        raise UsageError(
            f"weights of another shape than the model's: {', '.join(wrong[:_MAX_NAMED])}"
        )
    return dict(loaded.state_dict())


def plan(network: Any, state: Mapping[str, Tensor]) -> Plan:
    """Returns which tensors to copy where. Raises `UsageError` for wrong names, shapes or types,
    and for numbers that are not finite. A tensor with several names may be given under any of them.
    If it is given several times, all copies must be equal."""
    targets: dict[str, Tensor] = network.state_dict()
    _check_names(unknown=set(state) - set(targets))
    steps: dict[int, tuple[str, Tensor, Tensor]] = {}
    for name, source in state.items():
        target = targets[name]
        _check(name, source, target)
        before = steps.setdefault(target.data_ptr(), (name, target, source))
        if before[2] is not source and not torch.equal(before[2], source):
            raise UsageError(f"{before[0]} and {name} are one tensor in the model, and differ")
    _check_names(
        missing=[name for name, target in targets.items() if target.data_ptr() not in steps]
    )
    return [(target, source) for _, target, source in steps.values()]


def apply(steps: Plan) -> None:
    with torch.no_grad():
        for target, source in steps:
            target.copy_(source)


def _check_names(*, unknown: Collection[str] = (), missing: Collection[str] = ()) -> None:
    if unknown:
        raise UsageError(
            f"the model has no weights called {', '.join(sorted(unknown)[:_MAX_NAMED])}"
        )
    if missing:
        raise UsageError(f"the new weights lack {', '.join(list(missing)[:_MAX_NAMED])}")


def _check(name: str, source: Tensor, target: Tensor) -> None:
    if source.shape != target.shape:
        raise UsageError(
            f"{name} has the shape {list(source.shape)}, the model's has {list(target.shape)}"
        )
    if source.is_floating_point() != target.is_floating_point():
        raise UsageError(f"{name} holds {source.dtype}, the model's holds {target.dtype}")
    if not bool(source.isfinite().all()):
        raise UsageError(f"{name} holds numbers that are not finite")
