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
    """Tokens of an unfinished completion, from its token `start` on.

    The spans count from the completion's first token, not from `start`.
    """

    start: int = 0
    ids: bytes = b""
    logprobs: bytes = b""
    versions: tuple[VersionSpan, ...] = ()
    logprobs_mode: LogprobsMode = LogprobsMode.UNKNOWN
    """Of all tokens up to the last one."""


class Partial(Struct, frozen=True):
    """Saving an unfinished completion: `save` makes new tokens durable."""

    save: Callable[[Draft], Awaitable[None]]
    every: int
    """Tokens between two saves."""
    seconds: float | None = None
    """Seconds after which fewer tokens are saved; None: a default."""


class Request(Struct, frozen=True):
    """One sample to draw. `id` names the step, for logs on both sides."""

    prompt: "array[int]"
    sampling: Sampling
    seed: int | None
    id: str
    stop_token_ids: tuple[int, ...] = ()
    home: str = ""
    """Requests of one home share a long prefix, which one replica has in its cache."""
    family: str = ""
    """Homes of one family share a short prefix: the samples of a task."""
    draft: Draft = Draft()
    """The tokens that are durable already: the completion continues from them."""
    partial: Partial | None = None
    decode: Callable[[Sequence[int]], str] | None = None
    """Needed to find a stop string that begins in the draft and ends after it."""
    messages: tuple[Message, ...] = ()
    """For engines that take no tokens."""
    tools: tuple[dict[str, object], ...] = ()
    structure: str = ""
    """The structural tag that constrains the reply, JSON; "": there is none."""
    seconds: float | None = None
    """The time limit of a completion in parts, without outages; then it is truncated."""
    experts_from: int | None = None
    """The first token of prompt and completion whose routed experts are wanted; None: none."""
    # What follows is set for one try, whose prompt has the tokens that are sampled already.
    model: str = ""
    """The name that the engine is asked for."""
    max_tokens: int = 0
    stream: bool = False
    adapter: str = ""
    """The name of the adapter that is asked for, which `model` then is."""
    prompt_json: Raw = Raw()


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
    """The tokens at which it continued after an interruption."""
    message: Message | None = None
    """The reply of an engine without tokens. Good for evaluation only."""
    logprobs_mode: LogprobsMode = LogprobsMode.UNKNOWN
    """The distribution of its engine's logprobs, for any sampling parameters."""
    usage: Usage | None = None
    """The usage of all tries that sent something; None if no engine reports it."""
    experts: ExpertRows | None = None
    """Of the tokens from the request's `experts_from` to the last but one."""
    reasoning_tags: tuple[str, ...] = ()
    """Between which the message's reasoning was part of its content."""
    dialect: str = ""
    """The HTTP interface of the engine that ended it."""


class Policy(Protocol):
    """A source of samples. A subclass may leave out all methods except `sample`."""

    model: str

    async def check(self) -> None:
        """Raises, before any work, if the endpoint is down or does not serve the model."""
        return

    async def ready(self) -> None:
        """Returns when the endpoint takes work."""
        return

    @property
    def seconds_down(self) -> float:
        """The time for which the endpoint has been down so far: no deadline counts it."""
        return 0.0

    async def sample(self, request: Request) -> Completion:
        """One completion, after as many tries as the policy's budget allows."""
        ...

    async def aclose(self) -> None:
        """Closes what it has opened."""
        return


class WrappedPolicy:
    """A policy that adds something to another one, and passes everything else on to it."""

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
    """A policy for runs that sample nothing: `sample` raises."""

    def __init__(self, model: str = "", why: HoldfastError | None = None):
        """`why`: the error that `sample` raises."""
        self.model = model
        self._why = why or UsageError(
            "this evaluation has no policy: its processor should generate nothing"
        )

    async def sample(self, request: Request) -> Completion:
        raise self._why
