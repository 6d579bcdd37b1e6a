"""A fingerprint of tensors that costs one pass over them, on whatever device they are.

It distinguishes the weights of one step from the weights of the next step. It does not protect
against an attacker.
"""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor


class Fingerprint:
    """A fingerprint of the names, types, shapes and contents of tensors. It does not depend on
    their order."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def of(self, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Yields the tensors unchanged, and adds each to the fingerprint."""
        for name, tensor in tensors:
            self._lines.append(_line(name, tensor))
            yield name, tensor

    @property
    def text(self) -> str:
        return hashlib.sha256("\n".join(sorted(self._lines)).encode()).hexdigest()[:16]


def _line(name: str, tensor: Tensor) -> str:
    data = tensor.detach().flatten().contiguous().view(torch.uint8)
    words = data[: len(data) // 2 * 2].view(torch.int16)
    # A plain sum would not notice values that change places.
    rows = words[: len(words) // 64 * 64].view(-1, 64).sum(0, dtype=torch.int64).tolist()
    rest = int(words[len(words) // 64 * 64 :].sum(dtype=torch.int64))
    return f"{name} {tensor.dtype} {list(tensor.shape)} {rows} {rest}"


def fingerprint_of(folder: Path) -> str:
    """Returns the fingerprint of a folder's safetensors."""
    from safetensors.torch import load_file

    whole = Fingerprint()
    for file in sorted(folder.glob("*.safetensors")):
        for _ in whole.of(load_file(file).items()):
            pass
    return whole.text
