"""Logprobs: of which distribution they are.

A trainer compares the logprobs of a sample with its own. Temperature and cuts (top_p, top_k) change
the distribution that tokens are sampled from; whether they change the logprobs that an engine gives
is a matter of the engine, and cannot be made good afterwards: that takes the logits of all tokens.
"""

from collections.abc import Iterable
from enum import StrEnum

from holdfast.records.sampling import Sampling

PROCESSING = "vLLM: --logprobs-mode processed_logprobs"
"""The option that makes an engine's logprobs PROCESSED."""


class LogprobsMode(StrEnum):
    """What an engine's logprobs have in them; in a sample, what its own do."""

    RAW = "raw"
    """Neither temperature nor cuts: the model's own distribution. vLLM's default."""
    TEMPERED = "tempered"
    """Temperature, but no cuts. SGLang's default."""
    UNKNOWN = "unknown"
    """Unknown: not recorded, or the engine could not be measured."""
    PROCESSED = "processed"
    """Both: the distribution that tokens were sampled from."""

    @property
    def is_known_to_differ(self) -> bool:
        """Of a sample: whether its logprobs are not of the distribution that was sampled from."""
        return self in (LogprobsMode.RAW, LogprobsMode.TEMPERED)


class Accepted(StrEnum):
    """Which logprobs samples are exported with."""

    PROCESSED = "processed"
    """Those of the distribution that was sampled from; samples that are known to have others are
    refused."""
    RAW = "raw"
    """Whatever there is: each sample says which (`logprobs_mode`)."""


_FROM_THE_WORST = tuple(LogprobsMode)


def mode_with(engine: LogprobsMode, sampling: Sampling) -> LogprobsMode:
    """What the logprobs of an engine are when it samples like this.

    At temperature 1, uncut, all modes are one. Greedy replies have logprobs of temperature 1 with
    every engine: those of their own distribution would all be 0.
    """
    if not sampling.temperature:
        return LogprobsMode.RAW
    is_plain = sampling.temperature == 1 or engine is LogprobsMode.TEMPERED
    if is_plain and not sampling.is_cut:
        return LogprobsMode.PROCESSED
    return engine


def distribution_of(sampling: Sampling) -> str:
    """What of it decides how far logprobs can be off, as text."""
    likeliest = f" and top_k {sampling.top_k}" if sampling.top_k else ""
    return f"temperature {sampling.temperature:g} and top_p {sampling.top_p:g}{likeliest}"


def worst(modes: Iterable[LogprobsMode]) -> LogprobsMode:
    """That of several together; of nothing, PROCESSED."""
    return min(modes, key=_FROM_THE_WORST.index, default=LogprobsMode.PROCESSED)
