"""A request to the fake engine, whatever its wire; and what a wire is."""

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
"""A temperature or top_p up to which the most likely tokens are sampled."""


class FakeRequest(Struct, kw_only=True):
    """One sample to draw, and how to report it."""

    id: str
    model: str
    prompt: list[int]
    limits: TokenLimits
    seed: int | None = None
    """None: the engine's own choice."""
    stream: bool = False
    usage: bool = False
    """A stream ends with a chunk that has the usage."""
    logprobs: bool = True
    token_ids: bool = True
    """The sampled ids are listed."""
    prompt_ids: bool = False
    """The prompt's ids are listed."""
    logprob_texts: bool = False
    """Each logprob comes with the text of its token."""
    raw_output: bool = False
    legacy_logprobs: bool = False
    tools: bool = False
    """Tool calls in the text are to be parsed."""
    hide_ids: bool = False
    """A lie by omission: no id of a sampled token is listed anywhere."""
    schema: dict[str, object] | None = None
    """The schema that the reply must fit, as JSON; None: any text."""
    effort: str | None = None
    images: tuple[str, ...] = ()
    thinking_token_budget: int | None = None
    experts_from: int | None = None
    """The first token whose routed experts are listed; None: none are."""
    temperature: float = 1.0
    top_p: float = 1.0
    version: str = DEFAULT_VERSION
    """The weights when it was read."""
    created: int = 0

    @property
    def seed_or_random(self) -> int:
        if self.seed is not None:
            return self.seed
        if min(self.temperature, self.top_p) <= GREEDY_BELOW:
            return 0
        return random.getrandbits(64)


class FakeWire(ABC):
    """Turns bytes into a `FakeRequest`, and the pieces of a generation into an engine's JSON.

    It draws no tokens, and knows nothing of sockets or faults.
    """

    def __init__(self, options: FakeOptions, adapters: Collection[str] = ()):
        self.options = options
        self.adapters = adapters

    def served(self, requested: str | None) -> str:
        """The name that is asked for, if it is served: the model's, or that of an adapter."""
        if requested not in self.adapters:
            check_model(requested, self.options.model)
        return requested or self.options.model

    @abstractmethod
    def read(self, raw: bytes, request_id: str) -> FakeRequest:
        """Raises `EngineRequestRejected`."""

    def request_id(self, raw: bytes) -> str | None:
        """Where the body names the request; a header does it everywhere."""
        return None

    @abstractmethod
    def whole(self, job: FakeRequest, piece: FakePiece) -> object:
        """The response without a stream."""

    def for_stream(self) -> "FakeWire":
        """The wire for one stream, which may keep what it has sent."""
        return self

    def opening(self, job: FakeRequest) -> Sequence[object]:
        return ()

    @abstractmethod
    def chunks(self, job: FakeRequest, piece: FakePiece) -> Sequence[object]: ...

    def closing(self, job: FakeRequest, tokens: int) -> Sequence[object]:
        """The events between the last piece and `[DONE]`."""
        return ()

    def error(self, error: EngineRequestRejected) -> object:
        """An error inside a stream, or with status 200."""
        return error.body

    def check(self, job: FakeRequest, *, n: int | None) -> FakeRequest:
        """What every engine rejects, with vLLM's messages."""
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
    """One prompt, as text or as ids."""
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
