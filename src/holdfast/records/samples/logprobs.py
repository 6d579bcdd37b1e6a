"""Says to which distribution logprobs belong.

A trainer compares the logprobs of a sample with its own. The distribution from which tokens are
sampled differs from the model's own by the temperature, by cuts, which exclude unlikely tokens
(top_p, top_k, min_p), and by biases, which change the probabilities of some tokens (penalties,
logit_bias). The engine decides whether its logprobs include these changes. They cannot be added
later, because that needs the logits of all tokens.
"""

from collections.abc import Iterable
from enum import StrEnum

from holdfast.records.sampling import Sampling

MAX_LOGPROB = 1e-3
"""The largest logprob that rounding can explain. A larger logprob is invalid."""
PROCESSING = "vLLM: --logprobs-mode processed_logprobs"
"""The engine option that makes logprobs PROCESSED."""


class LogprobsMode(StrEnum):
    """What the logprobs of an engine or of a sample include."""

    RAW = "raw"
    """Logprobs of the model's own distribution, without temperature, cuts and biases. This is
    vLLM's default."""
    TEMPERED = "tempered"
    """Logprobs with temperature but without cuts. This is SGLang's default."""
    UNKNOWN = "unknown"
    """The mode was not recorded, or the engine could not be measured."""
    PROCESSED = "processed"
    """Logprobs of the distribution from which tokens were sampled, with temperature and cuts."""

    @property
    def is_known_to_differ(self) -> bool:
        """Returns whether a sample's logprobs are known to belong to another distribution than the
        sampled one."""
        return self in (LogprobsMode.RAW, LogprobsMode.TEMPERED)


class Accepted(StrEnum):
    """The logprobs with which samples are exported."""

    PROCESSED = "processed"
    """Logprobs of the sampled distribution. Samples with known other logprobs are refused."""
    RAW = "raw"
    """Any logprobs. Each sample names its mode (`logprobs_mode`)."""


_FROM_THE_WORST = tuple(LogprobsMode)


def mode_with(engine: LogprobsMode, sampling: Sampling) -> LogprobsMode:
    """Returns the mode of an engine's logprobs under this sampling.

    At temperature 1 without cuts and biases, all modes are equal. An engine's mode is measured with
    a temperature and a cut. If its logprobs do not include the cut, this function assumes that they
    do not include biases. Greedy replies have logprobs of temperature 1 with every engine, because
    logprobs of the greedy distribution would all be 0.
    """
    if not sampling.temperature:
        return LogprobsMode.RAW
    is_plain = sampling.temperature == 1 or engine is LogprobsMode.TEMPERED
    if is_plain and not sampling.is_cut and not sampling.is_bent:
        return LogprobsMode.PROCESSED
    return engine


def distribution_of(sampling: Sampling) -> str:
    """Describes the parameters that change the distribution of tokens, such as `temperature 1 and
    top_p 0.9`."""
    text = f"temperature {sampling.temperature:g} and top_p {sampling.top_p:g}"
    numbers = ("top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
    for name in sampling.altered_by:
        if name in numbers:
            text += f" and {name} {getattr(sampling, name):g}"
        elif name in ("logit_bias", "extra_body"):
            text += f" and {name}"
    return text


def worst(modes: Iterable[LogprobsMode]) -> LogprobsMode:
    """Returns the worst of the modes, which is the first in the order of `LogprobsMode`; PROCESSED
    if there are no modes."""
    return min(modes, key=_FROM_THE_WORST.index, default=LogprobsMode.PROCESSED)
