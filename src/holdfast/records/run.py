"""Run: a named set of trajectories, and what makes two runs the same run."""

import hashlib

import msgspec
from msgspec import Struct

from holdfast.records.errors import UsageError
from holdfast.records.group import GroupPolicy
from holdfast.records.sampling import Sampling


class RunSpec(Struct, frozen=True):
    """What a run samples. Resuming with another one is refused unless accepted by name."""

    name: str
    samples: int
    model: str
    sampling: Sampling
    seed: int | None
    rollout: str
    """The rollout's name and the fingerprint of its source."""
    scorer: str
    renderer: str
    tasks: str
    """The digest of ids and contents, in order."""
    group: GroupPolicy = GroupPolicy()

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise UsageError(f"samples must be 1 or more, not {self.samples}")
        if not self.name or "/" in self.name or len(self.name) > 200:
            raise UsageError(f"a run's name has 1 to 200 characters and no '/': {self.name!r}")

    def differences(self, other: "RunSpec") -> list[str]:
        """One line for each thing in which `other` is not this run."""
        mine, theirs = _flat(self), _flat(other)
        return [
            f"{field}: recorded {mine.get(field)!r}, now {theirs.get(field)!r}"
            for field in mine
            if mine.get(field) != theirs.get(field)
        ]


class RunChange(Struct, frozen=True):
    """A change that the user accepted on the way."""

    differences: tuple[str, ...]
    at: float


class Run(Struct):
    """A run as a journal holds it."""

    id: int
    spec: RunSpec
    changes: tuple[RunChange, ...]
    created: float


def seed_for(run_seed: int | None, *, task: str, sample: int, life: int, path: str) -> int | None:
    """The seed of one request: a pure function, so that a deterministic engine repeats a run.

    The run's name is no part of it: the same seed under another name gives the same samples.
    """
    if run_seed is None:
        return None
    name = f"{run_seed}\0{task}\0{sample}\0{life}\0{path}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big") >> 1


def _flat(spec: RunSpec) -> dict[str, object]:
    flat: dict[str, object] = {}
    for field, value in msgspec.to_builtins(spec).items():
        if isinstance(value, dict):
            defaults = msgspec.structs.asdict(getattr(spec, field))
            flat |= {f"{field}.{key}": inner for key, inner in defaults.items()}
        else:
            flat[field] = value
    return flat
