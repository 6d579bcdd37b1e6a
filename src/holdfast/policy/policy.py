"""Policy: whatever samples tokens from a prompt of tokens."""

from array import array
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from msgspec import Struct

from holdfast.records.message import Message
from holdfast.records.samples.logprobs import LogprobsMode
from holdfast.records.sampling import Sampling
from holdfast.records.step import VersionSpan

DEADLINE = "deadline"
"""The finish reason of a completion that was still being sampled at its deadline."""


class Draft(Struct, frozen=True, gc=False):
    """Tokens of a completion that is not finished, from its token `start` on.

    The spans count from the completion's first token, whatever `start` is.
    """

    start: int = 0
    ids: bytes = b""
    logprobs: bytes = b""
    versions: tuple[VersionSpan, ...] = ()
    logprobs_mode: LogprobsMode = LogprobsMode.UNKNOWN
    """Of all tokens up to its last one."""


class Partial(Struct, frozen=True):
    """How an unfinished completion is kept: `save` makes new tokens durable."""

    save: Callable[[Draft], Awaitable[None]]
    every: int
    """Tokens between two saves."""
    seconds: float | None = None
    """Seconds after which fewer are enough; None: a few."""


class Request(Struct, frozen=True):
    """One sample to draw. `id` names the step, for logs on both sides."""

    prompt: "array[int]"
    sampling: Sampling
    seed: int | None
    id: str
    stop_token_ids: tuple[int, ...] = ()
    home: str = ""
    """Requests of one home share a long prefix, which the same replica has in its cache."""
    family: str = ""
    """Homes of one family share a short one: the samples of a task."""
    draft: Draft = Draft()
    """What is durable of the completion already: it goes on from there."""
    partial: Partial | None = None
    decode: Callable[[Sequence[int]], str] | None = None
    """Needed where a stop string may lie across the seam between a draft and what follows."""
    messages: tuple[Message, ...] = ()
    """For engines that take no tokens."""
    tools: tuple[dict[str, object], ...] = ()
    structure: str = ""
    """The structural tag that it is kept to, JSON; "": it may be anything."""
    seconds: float | None = None
    """How long a completion that comes in parts may take, outages aside; then it is truncated."""


class Completion(Struct, frozen=True, gc=False):
    """Validated: as many finite logprobs as ids, spans that cover them, a reason to stop."""

    ids: bytes
    logprobs: bytes
    finish_reason: str
    versions: tuple[VersionSpan, ...]
    model: str
    tries: int
    seconds: float
    seams: tuple[int, ...] = ()
    """The tokens at which it went on after an interruption."""
    message: Message | None = None
    """From an engine that gives no tokens: what it said. Good for evaluation only."""
    logprobs_mode: LogprobsMode = LogprobsMode.UNKNOWN
    """What its engine's logprobs have in them, whatever the sampling."""


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
