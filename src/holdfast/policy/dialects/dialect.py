"""Dialect: how one kind of inference engine is asked, and how its answers are read.

A dialect knows the names of fields and nothing else: no sockets, no retries, no validation. What
it reads is a `Piece`, which `sampled` validates. Nothing in here is ever padded or guessed.
"""

from array import array
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Protocol

from msgspec import Raw, Struct, structs

from holdfast.policy.dialects.prompt_json import encode_prompt
from holdfast.policy.policy import Request
from holdfast.records.message import Message
from holdfast.records.step import VersionSpan

UNREADABLE = (ValueError, RecursionError)
"""What msgspec raises for JSON that it cannot read: its own errors, bad UTF-8, deep nesting."""


class Kind(StrEnum):
    """The dialects, by the names that `--dialect` takes."""

    VLLM = "vllm"
    """`/v1/completions` with token ids, as vLLM and the embedded engine speak it."""
    VLLM_GENERATE = "vllm-generate"
    """`/inference/v1/generate`: the only one that says which weights sampled each token."""
    SGLANG = "sglang"
    """`/generate` with `input_ids`."""
    FIREWORKS = "fireworks"
    """`/v1/completions` as Fireworks has it."""
    CHAT = "chat"
    """`/v1/chat/completions`: no token ids, for evaluation only."""


class SampleRequest(Struct, frozen=True):
    """One try of a request: its prompt goes up to the last token that is already there."""

    request: Request
    model: str
    prompt: "array[int]"
    max_tokens: int
    seed: int | None
    stream: bool
    _prompt_json: Raw | None = None

    @property
    def prompt_json(self) -> Raw:
        """The prompt in JSON. Encoded once: of a long prompt, that is much of a call's cost."""
        if self._prompt_json is None:
            structs.force_setattr(self, "_prompt_json", Raw(encode_prompt(self.prompt)))
        assert self._prompt_json is not None, "it was just set"
        return self._prompt_json

    @property
    def stream_options(self) -> dict[str, object]:
        """The fields with which vLLM and Fireworks are asked for a stream."""
        return {"stream": True, "stream_options": {"include_usage": True}} if self.stream else {}


def drop_none(fields: dict[str, object]) -> dict[str, object]:
    """The fields of a request body that have a value."""
    return {name: value for name, value in fields.items() if value is not None}


class Piece(Struct):
    """What one answer, or one event of a stream, says."""

    ids: Sequence[int] | None = None
    logprobs: Sequence[float] | None = None
    finish_reason: str | None = None
    model: str | None = None
    prompt: Sequence[int] | Raw | None = None
    """The prompt that the engine says it answers; as it was sent, so that it need not be read."""
    versions: tuple[VersionSpan, ...] | None = None
    """Spans of everything that this try has sampled so far, counted from its first token."""
    message: Message | None = None
    total: int | None = None
    """How many tokens the engine says that this try has sampled so far."""
    prompt_tokens: int | None = None
    """How many tokens the engine says that its prompt has."""

    @property
    def is_only_tokens(self) -> bool:
        """Whether it says nothing but tokens, each with its logprob."""
        ids, logprobs = self.ids, self.logprobs
        return (
            self.finish_reason is None
            and self.prompt is None
            and self.versions is None
            and self.total is None
            and self.prompt_tokens is None
            and type(ids) is type(logprobs) is list
            and len(ids) == len(logprobs)
        )


Reader = Callable[[bytes], Piece | None]
"""Reads one event of a stream, with what it remembers of those before; None: says nothing."""


class InvalidAnswer(Exception):
    """What is wrong with an answer; the evidence is added where the answer is at hand."""

    evidence: bytes = b""


class EngineError(Exception):
    """The answer is an error, although its status says 200."""

    def __init__(self, message: str, status: int = 500):
        super().__init__(message)
        self.status = status


class Dialect(Protocol):
    kind: Kind
    path: str
    has_tokens: bool
    """Whether it gives ids and logprobs: without them, nothing can be trained."""

    def body(self, attempt: SampleRequest) -> dict[str, object]: ...

    def whole(self, body: bytes) -> Piece:
        """Raises `InvalidAnswer` or `EngineError`."""
        ...

    def reader(self) -> Reader: ...
