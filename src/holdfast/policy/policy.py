"""Policy: whatever samples tokens from a prompt of tokens."""

from array import array
from typing import Protocol

from msgspec import Struct

from holdfast.records.sampling import Sampling
from holdfast.records.step import VersionSpan


class Request(Struct, frozen=True):
    """One sample to draw. `id` names the step, for logs on both sides."""

    prompt: "array[int]"
    sampling: Sampling
    seed: int | None
    id: str
    stop_token_ids: tuple[int, ...] = ()


class Completion(Struct, frozen=True):
    """Validated: as many finite logprobs as ids, spans that cover them, a reason to stop."""

    ids: bytes
    logprobs: bytes
    finish_reason: str
    versions: tuple[VersionSpan, ...]
    model: str
    tries: int
    seconds: float


class Policy(Protocol):
    model: str

    async def check(self) -> None:
        """Raises before any work is done if the endpoint is down or does not serve the model."""
        ...

    async def ready(self) -> None:
        """Returns when the endpoint takes work."""
        ...

    @property
    def seconds_down(self) -> float:
        """How long the endpoint has been down so far: time that no deadline counts."""
        ...

    async def sample(self, request: Request) -> Completion:
        """One completion, after as many tries as the policy's budget allows."""
        ...

    async def aclose(self) -> None: ...
