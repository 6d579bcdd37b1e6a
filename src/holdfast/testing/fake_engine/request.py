"""A request to the fake engine, whatever its wire; and what a wire is.

A wire turns bytes into a `FakeRequest` and the pieces of a generation into what its engine would
say. It draws no tokens, and knows nothing of sockets or faults.
"""

import random
import time
from collections.abc import Sequence
from typing import Protocol, TypeVar

import msgspec
from msgspec import Struct

from holdfast.testing.fake_engine import errors as refusals
from holdfast.testing.fake_engine.generation import FakePiece
from holdfast.testing.fake_engine.options import DEFAULT_VERSION
from holdfast.testing.fake_engine.tokens import TokenLimits

T = TypeVar("T")
NO_CHANCE = 0.05
"""A temperature or top_p up to which the most likely tokens are sampled."""


class FakeRequest(Struct, kw_only=True):
    """One sample to draw, and how to tell of it."""

    id: str
    model: str
    prompt: list[int]
    limits: TokenLimits
    seed: int | None = None
    """None: the engine's own chance."""
    stream: bool = False
    usage: bool = False
    """A stream ends with a chunk that has the usage."""
    logprobs: bool = True
    token_ids: bool = True
    """The ids that were sampled are listed."""
    prompt_ids: bool = False
    """The prompt's ids are told back, where that is an option of its own."""
    logprob_texts: bool = False
    """Each logprob comes with the text of its token."""
    raw_output: bool = False
    legacy_logprobs: bool = False
    tools: bool = False
    """Tool calls in the text are to be parsed."""
    hide_ids: bool = False
    """A lie by omission: no id of a sampled token is told anywhere."""
    schema: dict[str, object] | None = None
    """What the reply has to fit, as JSON; None: anything goes."""
    effort: str | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    version: str = DEFAULT_VERSION
    """The weights when it was read."""
    created: int = 0

    @property
    def seed_or_chance(self) -> int:
        if self.seed is not None:
            return self.seed
        if min(self.temperature, self.top_p) <= NO_CHANCE:
            return 0
        return random.getrandbits(64)


class EventWriter(Protocol):
    """What one stream consists of: JSON values, each an event."""

    def opening(self, job: FakeRequest) -> Sequence[object]: ...

    def piece(self, job: FakeRequest, piece: FakePiece) -> Sequence[object]: ...

    def closing(self, job: FakeRequest, tokens: int) -> Sequence[object]:
        """What follows the last piece, before `[DONE]`."""
        ...


class FakeWire(Protocol):
    def read(self, raw: bytes, request_id: str) -> FakeRequest:
        """Raises `Refused`."""
        ...

    def request_id(self, raw: bytes) -> str | None:
        """Where the body names the request; a header does it everywhere."""
        ...

    def whole(self, job: FakeRequest, piece: FakePiece) -> object: ...

    def events(self) -> EventWriter: ...

    def error(self, refusal: refusals.FakeRequestRejected) -> object:
        """An error inside a stream, or with status 200."""
        ...


class FakeStreamOptions(Struct):
    include_usage: bool = False


def decoded(decoder: "msgspec.json.Decoder[T]", raw: bytes) -> T:
    try:
        return decoder.decode(raw)
    except msgspec.MsgspecError as error:
        raise refusals.malformed(error) from error


def limits(
    max_tokens: int, stop: str | list[str] | None, stop_token_ids: list[int] | None
) -> TokenLimits:
    texts = (stop,) if isinstance(stop, str) else tuple(stop or ())
    return TokenLimits(max_tokens, tuple(stop_token_ids or ()), texts)


def checked(job: FakeRequest, *, max_model_len: int) -> FakeRequest:
    """What every engine refuses, with vLLM's words."""
    if job.temperature < 0:
        raise refusals.bad_parameter("temperature", "non-negative", job.temperature)
    wanted = job.limits.max_tokens
    if wanted < 1:
        raise refusals.bad_parameter("max_tokens", "at least 1", wanted)
    if len(job.prompt) + wanted > max_model_len:
        raise refusals.too_long(max_model_len, len(job.prompt), wanted)
    if not job.prompt:
        raise refusals.FakeRequestRejected(
            400, "The decoder prompt cannot be empty", param="prompt"
        )
    job.created = int(time.time())
    return job


def only_one(n: int) -> None:
    if n != 1:
        raise refusals.FakeRequestRejected(
            400, "The fake engine draws one sample for each request", param="n"
        )
