"""A version of the weights on disk, and the logprobs that identify it."""

from pathlib import Path

from msgspec import Struct

from holdfast.records.errors import HoldfastError

PREFIXES = (*range(2, 48, 3), 96, 192)
"""The lengths of the compared beginnings of the fixed sequence. The longest ones fill blocks of a
prefix cache, so that an outdated cache is noticed."""


class WeightsNotTaken(HoldfastError):
    """An engine did not take a version of the weights."""


class TokenScores(Struct, frozen=True):
    """A fixed sequence of tokens. For some of its beginnings, it has the trainer's logprob of the
    most likely next token."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    dtype: str = "float32"
    """The data type of the trainer's weights."""
    lengths: tuple[int, ...] = PREFIXES
    """The lengths of the beginnings."""
    before: tuple[float, ...] = ()
    """The logprobs of the previous version of the weights, if the trainer knows them."""


class WeightFolder(Struct, frozen=True):
    """A version of the weights on disk, as a Hugging Face folder. A name never stands for other
    bytes."""

    name: str
    path: Path
    digest: str
    adapter: Path | None = None
    """The same version as a LoRA adapter, if an adapter is trained."""
    scores: TokenScores | None = None
    """The logprobs that an engine with these weights must compute. With None, the version that the
    engine reports is trusted."""


def size_of(folder: Path) -> int:
    """Returns the size of a folder's weights in bytes."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))
