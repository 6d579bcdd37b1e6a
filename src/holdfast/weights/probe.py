"""Whether an engine has the weights that the trainer has: its word, and its numbers.

The word is the version that it reports. The numbers are logprobs along a fixed sequence: after some
of its beginnings, that of the most likely token, by the engine and by the trainer. A reload
that answers 200 and serves other weights, as some do, is seen by nothing else. The trainer knows
the version before as well. So it asks where the two differ most, and compares on whose side the
engine is: that shows steps far smaller than the noise of one logprob. Greedy requests of one token
are what every engine knows; asked for the logprobs of a prompt, vLLM 0.32 on a CPU ends if it
serves adapters and has other requests in flight.
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
"""Beginnings among which the trainer chooses."""
CHOSEN = 16
NOISE = {"float32": 2e-5, "bfloat16": 0.04, "float16": 5e-3}
"""Of one logprob, between two ways to compute it: the root of the mean square, in nats."""
LOUD = 4.0
"""Times the noise: more than that on average are other weights."""
CLEAR = 6.0
"""Times the noise: versions that are less apart cannot be told from each other."""


class ProbeResult(Struct, frozen=True):
    """How far the engine's logprobs are from the trainer's."""

    worst: float
    mean: float
    """The root of the mean square."""
    tolerance: float
    dtype: str
    count: int
    apart: float = math.inf
    """How far the version before is from this one, in times the noise of all logprobs together."""
    share: float = 1.0
    """Where the engine is on the way from the version before (0) to this one (1)."""

    @property
    def is_blind(self) -> bool:
        """Whether the version before could not be told from this one."""
        return self.apart < CLEAR

    @property
    def is_other(self) -> bool:
        """Whether the engine has other weights."""
        is_near = self.worst <= self.tolerance and self.mean <= self._loud
        return not is_near or (not self.is_blind and self.share < 0.5)

    @property
    def _loud(self) -> float:
        # A single float32 outlier is bounded by the tolerance alone.
        return max(LOUD * NOISE[self.dtype], self.tolerance / 4)

    @property
    def text(self) -> str:
        if not self.is_blind and self.share < 0.5:
            return "logprobs are nearer to those of the version before"
        return (
            f"logprobs at {self.count} tokens differ by at most {self.worst:.2g} nats, "
            f"{self.tolerance:g} are allowed in {self.dtype}; on average by {self.mean:.2g}, "
            f"{self._loud:.2g} are allowed"
        )


def probe_ids(vocabulary: int) -> list[int]:
    """The fixed sequence: spread over the vocabulary, it makes no sense, so that no model is
    certain of it."""
    return [(7919 * number + 11) % vocabulary for number in range(PREFIXES[-1])]


def chosen_scores(
    ids: Sequence[int], now: Sequence[float], before: Sequence[float], dtype: str
) -> TokenScores:
    """Where the two versions differ most, and the last beginnings. `now` and `before` are the
    logprobs at all candidates; without `before`, the usual beginnings are taken."""
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
    """Raises `WeightsNotTaken` if the engine reports another version than it was sent."""
    reported = await replica.endpoint.version()
    if reported is not None and reported != version.name:
        raise WeightsNotTaken(
            f"{replica.name} says that it has the weights {reported!r}, and was sent "
            f"{version.name!r}"
        )


async def check_scores(
    replica: Replica, scores: TokenScores, *, version: str, model: str
) -> ProbeResult:
    """Raises `WeightsNotTaken` if the engine computes other logprobs than the trainer. `model`: the
    name by which it is asked for the version."""
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
    """`found`: the engine's, at the first of the lengths."""
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
    return ProbeResult(
        worst,
        mean,
        TOLERANCES[dtype],
        dtype,
        len(gaps),
        apart=math.sqrt(square) / NOISE[dtype],
        share=along / square if square else 1.0,
    )


def _coarser(first: str, second: str) -> str:
    known = [dtype for dtype in (first, second) if dtype in TOLERANCES]
    return max(known, key=lambda dtype: TOLERANCES[dtype], default="float32")
