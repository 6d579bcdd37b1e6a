"""A version of the weights on disk, and the logprobs by which it is recognised."""

from pathlib import Path

from msgspec import Struct

from holdfast.records.errors import HoldfastError

PREFIXES = (*range(2, 48, 3), 96, 192)
"""Lengths of beginnings of the fixed sequence. The last fill blocks of a prefix cache: one that is
stale shows."""


class WeightsNotTaken(HoldfastError):
    """An engine did not take a version of the weights."""


class TokenScores(Struct, frozen=True):
    """A fixed sequence, and the logprob of the most likely token after some of its beginnings, with
    the trainer's weights."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    dtype: str = "float32"
    """In which the trainer computed them."""
    lengths: tuple[int, ...] = PREFIXES
    """Of the beginnings."""
    before: tuple[float, ...] = ()
    """With the weights of the version before, where the trainer knows it."""


class WeightFolder(Struct, frozen=True):
    """A version on disk: a Hugging Face folder. Its name never stands for other bytes."""

    name: str
    path: Path
    digest: str
    adapter: Path | None = None
    """The same version as a LoRA adapter, if an adapter is trained."""
    scores: TokenScores | None = None
    """What an engine with these weights must compute; None: its word is trusted."""


def size_of(folder: Path) -> int:
    """Bytes of its weights."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))
