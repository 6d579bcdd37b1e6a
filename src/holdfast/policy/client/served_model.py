"""A model as `/v1/models` describes it, and the effect of its seeds."""

from enum import StrEnum

import msgspec


class Seeds(StrEnum):
    """The effect of a seed."""

    REQUEST = "request"
    """It starts the noise of a request: only a whole request repeats. vLLM."""
    POSITION = "position"
    """It names the noise of each position: a completion that continues from its tokens gets the
    same tokens as without an interruption. The embedded engine; SGLang with an option."""
    NONE = "none"
    """Nothing."""


class ServedModel(msgspec.Struct):
    """An entry of `/v1/models`."""

    id: str
    max_model_len: int | None = None
    context_length: int | None = None
    root: str | None = None
    owned_by: str | None = None
    seeds: str | None = None
    """A value of `Seeds`, if the engine publishes it."""
    logprobs_mode: str | None = None
    """A value of `LogprobsMode`, if the engine publishes it."""
    renderer: str | None = None
    """The renderer of its tokens, for a model without a tokenizer's folder."""


class Models(msgspec.Struct):
    data: list[ServedModel]
