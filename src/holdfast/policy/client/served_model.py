"""A served model: what `/v1/models` says of it, and what an engine makes of its seeds."""

from enum import StrEnum

import msgspec


class Seeds(StrEnum):
    """What an engine makes of a seed."""

    REQUEST = "request"
    """It begins the noise of a request: only the whole request repeats. vLLM."""
    POSITION = "position"
    """It names the noise of each position, so that a completion that goes on from its tokens gets
    the same ones as if it had never stopped. The embedded engine; SGLang, if told to."""
    NONE = "none"
    """Nothing."""


class ServedModel(msgspec.Struct):
    """What `/v1/models` says of one model."""

    id: str
    max_model_len: int | None = None
    context_length: int | None = None
    root: str | None = None
    owned_by: str | None = None
    seeds: str | None = None
    """A word of `Seeds`, from an engine that says it."""
    logprobs_mode: str | None = None
    """A word of `LogprobsMode`, from an engine that says it."""
    renderer: str | None = None
    """The renderer of its tokens, where no tokenizer's folder names it."""


class Models(msgspec.Struct):
    data: list[ServedModel]
