"""The interface of a dialect: request bodies for one kind of engine, and its answers as pieces.

A dialect knows the names of fields and nothing else: no sockets, no retries, no validation.
`completion_builder` validates the pieces. Nothing is ever padded or guessed.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Protocol

from msgspec import Raw, Struct, structs

from holdfast.policy.dialects.prompt_json import encode_prompt
from holdfast.policy.policy import Request
from holdfast.records.errors import Unsupported
from holdfast.records.message import Message
from holdfast.records.samples.experts import ExpertRows
from holdfast.records.step import VersionSpan
from holdfast.records.usage import Usage

UNREADABLE = (ValueError, RecursionError)
"""The errors of msgspec for invalid JSON, bad UTF-8 and deep nesting."""


class Kind(StrEnum):
    """The dialects, by the names that `--dialect` takes."""

    VLLM = "vllm"
    """`/v1/completions` with token ids, of vLLM and the embedded engine."""
    VLLM_GENERATE = "vllm-generate"
    """`/inference/v1/generate`, with the version of the weights for each token."""
    SGLANG = "sglang"
    """`/generate` with `input_ids`."""
    FIREWORKS = "fireworks"
    """`/v1/completions` of Fireworks."""
    CHAT = "chat"
    """`/v1/chat/completions`: no token ids, for evaluation only."""


class SampleRequest(Struct, frozen=True):
    """One try of a request. Its prompt includes the tokens that are sampled already."""

    request: Request
    model: str
    prompt: "array[int]"
    max_tokens: int
    seed: int | None
    stream: bool
    adapter: str = ""
    """The name of the adapter that is asked for, which `model` then is."""
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
        """The fields that request a stream of vLLM and Fireworks."""
        return {"stream": True, "stream_options": {"include_usage": True}} if self.stream else {}


def drop_none(fields: dict[str, object]) -> dict[str, object]:
    """The fields of a request body that have a value."""
    return {name: value for name, value in fields.items() if value is not None}


def add_extra(body: dict[str, object], extra: Mapping[str, object], *, at: str = "") -> None:
    """Adds members to a request body; raises `Unsupported` for one that it has already."""
    for name, value in extra.items():
        held = body.get(name)
        if isinstance(held, dict) and isinstance(value, Mapping):
            add_extra(held, value, at=f"{at}{name}.")
        elif name in body:
            raise Unsupported("extra_body", f"extra_body.{at}{name}: the request has one already")
        else:
            body[name] = value


class Piece(Struct):
    """The content of one answer, or of one event of a stream."""

    ids: Sequence[int] | None = None
    logprobs: Sequence[float] | None = None
    finish_reason: str | None = None
    model: str | None = None
    prompt: Sequence[int] | Raw | None = None
    """The prompt that the engine repeats; undecoded, if it need not be decoded."""
    versions: tuple[VersionSpan, ...] | None = None
    """Spans of all tokens of this try so far, counted from its first token."""
    message: Message | None = None
    total: int | None = None
    """The engine's count of the tokens of this try so far."""
    prompt_tokens: int | None = None
    """The engine's count of the tokens of the prompt."""
    usage: Usage | None = None
    """All that the engine counts of this try so far."""
    experts: ExpertRows | None = None
    """Of all tokens that were asked for, once the try has ended."""
    reasoning_tags: tuple[str, ...] = ()
    """Between which the message's reasoning was part of its content."""

    @property
    def is_only_tokens(self) -> bool:
        """Whether it has nothing but tokens, each with its logprob."""
        ids, logprobs = self.ids, self.logprobs
        return (
            self.finish_reason is None
            and self.prompt is None
            and self.versions is None
            and self.total is None
            and self.prompt_tokens is None
            and self.usage is None
            and type(ids) is type(logprobs) is list
            and len(ids) == len(logprobs)
        )


Reader = Callable[[bytes], Piece | None]
"""Reads one event of a stream, and may keep state between events; None: an empty event."""


class InvalidAnswer(Exception):
    """A fault of an answer. `evidence`: the data of the wrong event, if it is one of several."""

    evidence: bytes = b""


class EngineError(Exception):
    """The answer is an error, although its status is 200."""

    def __init__(self, message: str, status: int = 500):
        super().__init__(message)
        self.status = status


class Dialect(Protocol):
    kind: Kind
    path: str
    has_tokens: bool
    """Whether it has ids and logprobs: without them, there is no training."""

    def body(self, attempt: SampleRequest) -> dict[str, object]: ...

    def whole(self, body: bytes) -> Piece:
        """A whole answer. Raises `InvalidAnswer` or `EngineError`."""
        ...

    def reader(self) -> Reader: ...
