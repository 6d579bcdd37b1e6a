"""A request to the fake engine, in a form that is the same for all wires, and the interface of
wires."""

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

from msgspec import Struct

from holdfast.engine_api.errors import EngineRequestRejected
from holdfast.engine_api.requests import check_model, check_prompt, check_sampling
from holdfast.testing.fake_engine.generation import FakePiece
from holdfast.testing.fake_engine.options import DEFAULT_VERSION, FakeOptions
from holdfast.testing.fake_engine.tokens import TokenLimits

GREEDY_BELOW = 0.05
"""At a temperature or top_p up to this value, sampling is greedy."""


class FakeRequest(Struct, kw_only=True):
    """A request for one sample, and how to report the sample."""

    id: str
    model: str
    prompt: list[int]
    limits: TokenLimits
    seed: int | None = None
    """The seed of the request. With None, the engine chooses a seed."""
    stream: bool = False
    usage: bool = False
    """Whether a stream ends with a chunk that has the usage."""
    logprobs: bool = True
    token_ids: bool = True
    """Whether the answer lists the ids of the sampled tokens."""
    prompt_ids: bool = False
    """Whether the answer lists the ids of the prompt."""
    logprob_texts: bool = False
    """Whether each logprob comes with the text of its token."""
    raw_output: bool = False
    legacy_logprobs: bool = False
    tools: bool = False
    """Whether tool calls in the text are parsed."""
    hide_ids: bool = False
    """Whether a fault removes all ids of sampled tokens from the answer."""
    schema: dict[str, object] | None = None
    """The schema that the reply must fit, as JSON; None allows any text."""
    effort: str | None = None
    images: tuple[str, ...] = ()
    thinking_token_budget: int | None = None
    experts_from: int | None = None
    """The number of the first token whose routed experts are listed; None lists no experts."""
    temperature: float = 1.0
    top_p: float = 1.0
    version: str = DEFAULT_VERSION
    """The version of the engine's weights when the request was read."""
    created: int = 0

    @property
    def seed_or_random(self) -> int:
        if self.seed is not None:
            return self.seed
        if min(self.temperature, self.top_p) <= GREEDY_BELOW:
            return 0
        return random.getrandbits(64)


class FakeWire(ABC):
    """Reads the bytes of a request as a `FakeRequest`, and writes the pieces of a generation as an
    engine's JSON.

    A wire draws no tokens, and knows nothing of sockets or faults.
    """

    def __init__(self, options: FakeOptions, adapters: Collection[str] = ()):
        self.options = options
        self.adapters = adapters

    def served(self, requested: str | None) -> str:
        """Returns the requested name if it is the name of the model or of an adapter. Otherwise
        raises `EngineRequestRejected`."""
        if requested not in self.adapters:
            check_model(requested, self.options.model)
        return requested or self.options.model

    @abstractmethod
    def read(self, raw: bytes, request_id: str) -> FakeRequest:
        """Reads a request. Raises `EngineRequestRejected` for a request that the engine rejects."""

    def request_id(self, raw: bytes) -> str | None:
        """Returns the request's id from its body, for engines whose requests have the id there.
        Every wire also accepts the id in a header."""
        return None

    @abstractmethod
    def whole(self, job: FakeRequest, piece: FakePiece) -> object:
        """Returns the response to a request without a stream."""

    def for_stream(self) -> "FakeWire":
        """Returns a wire for one stream. It may remember which events it has sent."""
        return self

    def opening(self, job: FakeRequest) -> Sequence[object]:
        return ()

    @abstractmethod
    def chunks(self, job: FakeRequest, piece: FakePiece) -> Sequence[object]: ...

    def closing(self, job: FakeRequest, tokens: int) -> Sequence[object]:
        """Returns the events between the last piece and `[DONE]`."""
        return ()

    def error(self, error: EngineRequestRejected) -> object:
        """Returns the event or body of an error inside a stream, or of an error with status 200."""
        return error.body

    def check(self, job: FakeRequest, *, n: int | None) -> FakeRequest:
        """Returns the request unchanged. Raises `EngineRequestRejected`, with vLLM's messages, for
        values that every engine rejects."""
        if n not in (None, 1):
            message = "The fake engine draws one sample for each request"
            raise EngineRequestRejected(400, message, param="n")
        max_tokens = job.limits.max_tokens
        check_sampling(temperature=job.temperature, top_p=job.top_p, max_tokens=max_tokens)
        limit = self.options.max_model_len
        check_prompt(job.prompt, max_tokens=max_tokens, max_model_len=limit)
        job.created = int(time.time())
        return job


def text_prompt(prompt: str | list[int | str | list[int]]) -> list[int]:
    """Returns the token ids of one prompt, which is given as text or as ids."""
    if isinstance(prompt, str):
        return list(prompt.encode())
    ids = [token for token in prompt if isinstance(token, int)]
    if len(ids) < len(prompt):
        message = "The fake engine takes one prompt for each request"
        raise EngineRequestRejected(400, message, param="prompt")
    return ids


def limits(
    max_tokens: int, stop: str | list[str] | None, stop_token_ids: list[int] | None
) -> TokenLimits:
    texts = (stop,) if isinstance(stop, str) else tuple(stop or ())
    return TokenLimits(max_tokens, tuple(stop_token_ids or ()), texts)
