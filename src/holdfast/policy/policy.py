"""Policy, request and completion: a prompt of tokens in, sampled tokens out."""

from array import array
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from msgspec import Raw, Struct

from holdfast.records.errors import HoldfastError, UsageError
from holdfast.records.message import Message
from holdfast.records.samples.experts import ExpertRows
from holdfast.records.samples.logprobs import LogprobsMode
from holdfast.records.sampling import Sampling
from holdfast.records.step import VersionSpan
from holdfast.records.usage import Usage

DEADLINE = "deadline"
"""The finish reason of a completion that was still being sampled at its deadline."""


class Draft(Struct, frozen=True, gc=False):
    """Tokens of an unfinished completion, beginning with its token `start`.

    The spans count from the completion's first token, not from `start`.
    """

    start: int = 0
    ids: bytes = b""
    logprobs: bytes = b""
    versions: tuple[VersionSpan, ...] = ()
    logprobs_mode: LogprobsMode = LogprobsMode.UNKNOWN
    """The worst logprobs mode of all tokens of the completion so far."""


class Partial(Struct, frozen=True):
    """How to save an unfinished completion. `save` makes new tokens durable."""

    save: Callable[[Draft], Awaitable[None]]
    every: int
    """How many new tokens are saved at a time."""
    seconds: float | None = None
    """Seconds after which fewer tokens than `every` are saved. None means a default."""


class Request(Struct, frozen=True):
    """A request for one sample. `id` names the step in the logs of the client and the engine."""

    prompt: "array[int]"
    sampling: Sampling
    seed: int | None
    id: str
    stop_token_ids: tuple[int, ...] = ()
    home: str = ""
    """The name of a group of requests with a long common prefix, which one replica has in its
    cache."""
    family: str = ""
    """The name of a group of homes with a short common prefix, for example the samples of a
    task."""
    draft: Draft = Draft()
    """The tokens that are durable already. The completion continues from them."""
    partial: Partial | None = None
    decode: Callable[[Sequence[int]], str] | None = None
    """Decodes token ids into text. Needed to find a stop string that begins in the draft and ends
    after it."""
    messages: tuple[Message, ...] = ()
    """The prompt as messages, for engines that take no tokens."""
    tools: tuple[dict[str, object], ...] = ()
    structure: str = ""
    """The structural tag in JSON that constrains the reply, or ""."""
    seconds: float | None = None
    """The time limit in seconds, without outages, of a completion that is saved in parts. After
    that time, the completion is truncated."""
    experts_from: int | None = None
    """The index, in prompt + completion, of the first token whose routed experts are wanted. None
    if the request wants no routed experts."""
    # The following fields belong to one try, whose prompt includes the tokens sampled so far.
    model: str = ""
    """The model's name in the request to the engine."""
    max_tokens: int = 0
    stream: bool = False
    adapter: str = ""
    """The name of the requested adapter, or "". If set, `model` is the same name."""
    prompt_json: Raw = Raw()


class Completion(Struct, frozen=True, gc=False):
    """A validated completion: as many finite logprobs as ids, spans that cover all ids, and a
    reason to stop."""

    ids: bytes
    logprobs: bytes
    finish_reason: str
    versions: tuple[VersionSpan, ...]
    model: str
    tries: int
    seconds: float
    seams: tuple[int, ...] = ()
    """The positions at which the completion continued after an interruption."""
    message: Message | None = None
    """The reply of an engine without tokens. It is good for evaluation only."""
    logprobs_mode: LogprobsMode = LogprobsMode.UNKNOWN
    """The logprobs mode of the engine, whatever the request's sampling parameters are."""
    usage: Usage | None = None
    """The token counts of all tries that sent something. If the engine reports no counts for a try,
    the try's tokens are counted. None if the engine sends a message without counts."""
    experts: ExpertRows | None = None
    """The routed experts of the tokens from the request's `experts_from` to the last but one."""
    reasoning_tags: tuple[str, ...] = ()
    """The tags around the reasoning, if it was part of the message's content."""
    dialect: str = ""
    """The HTTP interface of the engine that finished the completion."""


class Policy(Protocol):
    """A source of samples. A subclass may leave out all methods except `sample`."""

    model: str

    async def check(self) -> None:
        """Raises an error, before any work, if the endpoint is down or does not serve the model."""
        return

    async def ready(self) -> None:
        """Returns when the endpoint takes work."""
        return

    @property
    def seconds_down(self) -> float:
        """Returns the total time for which the endpoint has been down. Deadlines do not count
        it."""
        return 0.0

    async def sample(self, request: Request) -> Completion:
        """Returns one completion, after as many tries as the policy's budget allows."""
        ...

    async def aclose(self) -> None:
        """Closes what the policy has opened."""
        return


class WrappedPolicy:
    """A policy that adds a behaviour to another policy and passes everything else on to it."""

    def __init__(self, policy: Policy):
        self.wrapped = policy
        self.model = policy.model

    async def check(self) -> None:
        await self.wrapped.check()

    async def ready(self) -> None:
        await self.wrapped.ready()

    @property
    def seconds_down(self) -> float:
        return self.wrapped.seconds_down

    async def sample(self, request: Request) -> Completion:
        return await self.wrapped.sample(request)

    async def aclose(self) -> None:
        await self.wrapped.aclose()


class NoPolicy(Policy):
    """A policy for runs that sample nothing. Its `sample` raises an error."""

    def __init__(self, model: str = "", why: HoldfastError | None = None):
        """`why` is the error that `sample` raises."""
        self.model = model
        self._why = why or UsageError(
            "this evaluation has no policy: its processor should generate nothing"
        )

    async def sample(self, request: Request) -> Completion:
        raise self._why
