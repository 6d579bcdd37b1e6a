"""Checks whether an engine has the trainer's weights, by the version it reports and by logprobs.

Some reloads answer 200 but serve other weights. Only logprobs show this: those of the most likely
token after some beginnings of a fixed sequence, by the engine and by the trainer.

The trainer also knows the logprobs of the previous version. It asks where the two versions differ
most, and compares which of them the engine is nearer to. This shows steps that are far smaller than
the noise of one logprob.

The requests are greedy, for one token each, because every engine knows such requests. If asked for
the logprobs of a prompt, vLLM 0.32 on a CPU ends if it serves adapters and has other requests in
flight.
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
"""The lengths of beginnings among which the trainer chooses."""
CHOSEN = 16
NOISE = {"float32": 2e-5, "bfloat16": 0.04, "float16": 5e-3}
"""The noise of one logprob between two ways to compute it: the root of the mean square, in nats."""
LOUD = 4.0
"""In multiples of the noise. A mean difference above it means other weights."""
CLEAR = 6.0
"""In multiples of the noise. Versions that differ by less cannot be told apart."""


class ProbeResult(Struct, frozen=True):
    """The distance of the engine's logprobs from the trainer's."""

    worst: float
    mean: float
    """The root of the mean square of the differences."""
    tolerance: float
    dtype: str
    count: int
    apart: float = math.inf
    """The distance of the previous version from this one, in multiples of the noise of all logprobs
    together."""
    share: float = 1.0
    """The engine's position on the way from the previous version (0) to this one (1)."""

    @property
    def is_blind(self) -> bool:
        """Whether the previous version cannot be told from this one."""
        return self.apart < CLEAR

    @property
    def is_other(self) -> bool:
        """Whether the engine has other weights."""
        is_near = self.worst <= self.tolerance and self.mean <= self._loud
        return not is_near or (not self.is_blind and self.share < 0.5)

    @property
    def _loud(self) -> float:
        # A single float32 outlier is bounded only by the tolerance.
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
    """Returns the fixed sequence. It is spread over the vocabulary and makes no sense, so that no
    model is certain of it."""
    return [(7919 * number + 11) % vocabulary for number in range(PREFIXES[-1])]


def chosen_scores(
    ids: Sequence[int], now: Sequence[float], before: Sequence[float], dtype: str
) -> TokenScores:
    """Returns the scores where the two versions differ most, with those of the last beginnings.
    `now` and `before` are the logprobs at all candidates. Without `before`, the default beginnings
    are used."""
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
    """Compares the engine's logprobs `found`, at the first of the lengths, with the trainer's."""
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
