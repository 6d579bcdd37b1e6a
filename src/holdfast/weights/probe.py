"""Checks whether an engine has the trainer's weights, by the version it reports and by logprobs.

Some engines answer a reload with status 200 but serve other weights. Logprobs show this: after some
beginnings of a fixed sequence, the engine's logprob of the most likely token is compared with the
trainer's.

The trainer also knows the logprobs of the previous version. It chooses the beginnings where the two
versions differ most, and finds out to which version the engine is nearer. This detects steps that
are far smaller than the noise of one logprob. The trainer's logprobs must be exact
(`Network.exact_logprobs`). If they were rounded, the two versions would seem to differ most at the
places with the most noise, and even an engine with the right weights would be near to neither
version.

The requests are greedy and ask for one token each, because every engine supports such requests.
Logprobs of a prompt are not requested: vLLM 0.32 on a CPU ends on such a request if it serves
adapters and has other requests in flight.
"""

import asyncio
import math
from collections.abc import Sequence

from msgspec import Struct

from holdfast.policy.client.logprobs_probe import TOLERANCES, likeliest
from holdfast.policy.client.probe import UNREACHABLE, describe_error
from holdfast.policy.dialects.dialect import EngineError, InvalidAnswer
from holdfast.weights.replica import Replica
from holdfast.weights.version import PREFIXES, TokenScores, WeightFolder, WeightsNotTaken

PROBE_SECONDS = 120.0
CANDIDATES = tuple(range(2, PREFIXES[-1] + 1))
"""The lengths of beginnings from which the trainer chooses."""
CHOSEN = 16
NOISE = {"float32": 2e-5, "bfloat16": 0.04, "float16": 5e-3}
"""The smallest noise of an engine's logprobs: the root of the mean square, in nats. Some models
have twice as much noise, so the noise is also measured."""
LOUD = 4.0
"""The mean difference that is allowed for the same weights, in multiples of the noise."""
SURE = 5.0
"""A number of standard deviations. An engine that is nearer to the previous version than to the new
one has other weights if it is at least this far from the new one."""
CLEAR = 2 * SURE
"""A number of standard deviations. Two versions that differ by less cannot always be
distinguished."""


class ProbeResult(Struct, frozen=True):
    """How far the engine's logprobs are from the trainer's."""

    worst: float
    mean: float
    """The root of the mean square of the differences."""
    tolerance: float
    dtype: str
    count: int
    apart: float = math.inf
    """The distance between the previous and this version, in standard deviations of the engine's
    noise along that line."""
    share: float = 1.0
    """The engine's position on the line from the previous version (0) to this version (1)."""

    @property
    def is_blind(self) -> bool:
        """Returns whether this check cannot always distinguish the previous version from this
        one."""
        return self.apart < CLEAR

    @property
    def is_other(self) -> bool:
        """Returns whether the engine has other weights than this version."""
        is_near = self.worst <= self.tolerance and self.mean <= self._loud
        return not is_near or self._is_before

    @property
    def _is_before(self) -> bool:
        return self.share < 0.5 and (1 - self.share) * self.apart > SURE

    @property
    def _loud(self) -> float:
        # A single float32 outlier is bounded only by the tolerance.
        return max(LOUD * NOISE[self.dtype], self.tolerance / 4)

    @property
    def text(self) -> str:
        if self._is_before:
            return "logprobs are nearer to those of the version before"
        return (
            f"logprobs at {self.count} tokens differ by at most {self.worst:.2g} nats, "
            f"{self.tolerance:g} are allowed in {self.dtype}; on average by {self.mean:.2g}, "
            f"{self._loud:.2g} are allowed"
        )


def probe_ids(vocabulary: int) -> list[int]:
    """Returns the fixed sequence of token ids. It is spread over the vocabulary and makes no sense,
    so that no model predicts its tokens with certainty."""
    return [(7919 * number + 11) % vocabulary for number in range(PREFIXES[-1])]


def chosen_scores(
    ids: Sequence[int], now: Sequence[float], before: Sequence[float], dtype: str
) -> TokenScores:
    """Returns the scores at the lengths where the two versions differ most, and at the longest
    lengths. `now` and `before` are the exact logprobs at all candidate lengths, and `dtype` is the
    type of the weights. If `before` is empty, uses the default lengths."""
    if not before:
        at = [CANDIDATES.index(length) for length in PREFIXES]
    else:
        order = sorted(range(len(now)), key=lambda place: -abs(now[place] - before[place]))
        at = sorted({*order[:CHOSEN], *(CANDIDATES.index(length) for length in PREFIXES[-2:])})
    return TokenScores(
        tuple(ids),
        tuple(now[place] for place in at),
        dtype,
        tuple(CANDIDATES[place] for place in at),
        tuple(before[place] for place in at) if before else (),
    )


async def check_version(replica: Replica, version: WeightFolder) -> None:
    """Raises `WeightsNotTaken` if the engine reports another version than the one that was sent."""
    reported = await replica.endpoint.version()
    if reported is not None and reported != version.name:
        raise WeightsNotTaken(
            f"{replica.name} says that it has the weights {reported!r}, and was sent "
            f"{version.name!r}"
        )


async def check_scores(
    replica: Replica, scores: TokenScores, *, version: str, model: str
) -> ProbeResult:
    """Compares the engine's logprobs with the trainer's. Raises `WeightsNotTaken` if they differ
    too much. `model` is the name by which the engine is asked for the version."""
    longest = replica.endpoint.described.max_model_len or math.inf
    count = sum(length < longest for length in scores.lengths)
    try:
        answers = await asyncio.gather(
            *(
                likeliest(replica.endpoint, scores.ids[:length], model=model, seconds=PROBE_SECONDS)
                for length in scores.lengths[:count]
            )
        )
    except (*UNREACHABLE, EngineError, InvalidAnswer) as error:
        raise WeightsNotTaken(
            f"{replica.name} cannot be probed for {version}: {describe_error(error)}"
        ) from error
    result = compared([logprob for _, logprob in answers], scores, replica.dtype)
    if result.is_other:
        raise WeightsNotTaken(
            f"{replica.name} took {version} and serves other weights: its {result.text}"
        )
    return result


def compared(found: Sequence[float], scores: TokenScores, engine_dtype: str = "") -> ProbeResult:
    """Compares the engine's logprobs `found` with the trainer's scores. `found` has the logprobs at
    the first lengths of the scores."""
    gaps = [a - b for a, b in zip(found, scores.logprobs, strict=False)]
    dtype = _coarser(scores.dtype, engine_dtype or scores.dtype)
    if not all(map(math.isfinite, gaps)):
        gaps = [math.inf]
    worst = max(map(abs, gaps), default=0.0)
    mean = math.sqrt(sum(gap * gap for gap in gaps) / max(len(gaps), 1))
    result = ProbeResult(worst, mean, TOLERANCES[dtype], dtype, len(gaps))
    if not scores.before or not math.isfinite(worst):
        return result
    steps = [a - b for a, b in zip(scores.logprobs, scores.before, strict=True)][: len(gaps)]
    square = sum(step * step for step in steps)
    along = sum((step + gap) * step for step, gap in zip(steps, gaps, strict=True))
    share = along / square if square else 1.0
    # Neither version explains the part across the way between them, so it is the engine's noise.
    across = sum(gap * gap for gap in gaps) - (1 - share) ** 2 * square
    noise = max(NOISE[dtype], math.sqrt(max(across, 0.0) / max(len(gaps) - 1, 1)))
    return ProbeResult(
        worst,
        mean,
        TOLERANCES[dtype],
        dtype,
        len(gaps),
        apart=math.sqrt(square) / noise,
        share=share,
    )


def _coarser(first: str, second: str) -> str:
    known = [dtype for dtype in (first, second) if dtype in TOLERANCES]
    return max(known, key=lambda dtype: TOLERANCES[dtype], default="float32")
