"""Logprobs: of which distribution they are.

A trainer compares the logprobs of a sample with its own. Temperature, cuts (top_p, top_k, min_p)
and bends (penalties, logit_bias) change the distribution that tokens are sampled from; whether they
change the logprobs that an engine gives is a matter of the engine, and cannot be made good
afterwards: that takes the logits of all tokens.
"""

from collections.abc import Iterable
from enum import StrEnum

from holdfast.records.sampling import Sampling

MAX_LOGPROB = 1e-3
"""The error that rounding may add to a probability of 1; a larger logprob is invalid."""
PROCESSING = "vLLM: --logprobs-mode processed_logprobs"
"""The option that makes an engine's logprobs PROCESSED."""


class LogprobsMode(StrEnum):
    """What an engine's logprobs include; in a sample, what the sample's logprobs include."""

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
    """Logprobs of the sampled distribution; samples with known others are refused."""
    RAW = "raw"
    """Any logprobs: each sample says which (`logprobs_mode`)."""


_FROM_THE_WORST = tuple(LogprobsMode)


def mode_with(engine: LogprobsMode, sampling: Sampling) -> LogprobsMode:
    """What the logprobs of an engine are when it samples like this.

    At temperature 1, neither cut nor bent, all modes are one. Measured of an engine are temperature
    and a cut: of one without cuts in its logprobs, bends are taken to be missing, too. Greedy
    replies have logprobs of temperature 1 with every engine: those of their own distribution would
    all be 0.
    """
    if not sampling.temperature:
        return LogprobsMode.RAW
    is_plain = sampling.temperature == 1 or engine is LogprobsMode.TEMPERED
    if is_plain and not sampling.is_cut and not sampling.is_bent:
        return LogprobsMode.PROCESSED
    return engine


def distribution_of(sampling: Sampling) -> str:
    """The part of the sampling that decides how far logprobs can be off, as text."""
    text = f"temperature {sampling.temperature:g} and top_p {sampling.top_p:g}"
    numbers = ("top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
    for name in sampling.altered_by:
        if name in numbers:
            text += f" and {name} {getattr(sampling, name):g}"
        elif name in ("logit_bias", "extra_body"):
            text += f" and {name}"
    return text


def worst(modes: Iterable[LogprobsMode]) -> LogprobsMode:
    """That of several together; of nothing, PROCESSED."""
    return min(modes, key=_FROM_THE_WORST.index, default=LogprobsMode.PROCESSED)
