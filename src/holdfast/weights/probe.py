"""Whether an engine has the weights that the trainer has: its word, and its numbers.

The word is the version that it reports. The numbers are logprobs along a fixed sequence: after each
of its beginnings, that of the most likely token, by the engine and by the trainer. A reload
that answers 200 and serves other weights, as some do, is seen by nothing else. Greedy requests of
one token are what every engine knows; asked for the logprobs of a prompt, vLLM 0.32 on a CPU ends
if it serves adapters and has other requests in flight.
"""

import asyncio
import math

from msgspec import Struct

from holdfast.policy.client.logprobs_probe import TOLERANCES, likeliest
from holdfast.policy.client.probe import UNREACHABLE, describe_error
from holdfast.policy.dialects.dialect import EngineError, InvalidAnswer
from holdfast.weights.replica import Replica
from holdfast.weights.version import TokenScores, WeightFolder, WeightsNotTaken

PROBE_SECONDS = 120.0
PREFIXES = (*range(2, 48, 3), 96, 192)
"""Lengths of the beginnings. The last fill blocks of a prefix cache: one that is stale shows."""


class ProbeResult(Struct, frozen=True):
    """How far the engine's logprobs are from the trainer's."""

    worst: float
    tolerance: float
    dtype: str

    @property
    def text(self) -> str:
        return (
            f"logprobs at {len(PREFIXES)} tokens differ by at most {self.worst:.2g} nats, "
            f"{self.tolerance:g} are allowed in {self.dtype}"
        )


def probe_ids(vocabulary: int) -> list[int]:
    """The fixed sequence: spread over the vocabulary, it makes no sense, so that no model is
    certain of it."""
    return [(7919 * number + 11) % vocabulary for number in range(PREFIXES[-1])]


async def check_version(replica: Replica, version: WeightFolder) -> None:
    """Raises `WeightsNotTaken` if the engine reports another version than it was sent."""
    found = await replica.endpoint.version()
    if found is not None and found != version.name:
        raise WeightsNotTaken(
            f"{replica.name} says that it has the weights {found!r}, and was sent {version.name!r}"
        )


async def check_scores(
    replica: Replica, scores: TokenScores, *, version: str, model: str
) -> ProbeResult:
    """Raises `WeightsNotTaken` if the engine computes other logprobs than the trainer. `model`: the
    name by which it is asked for the version."""
    try:
        lengths = [n for n in PREFIXES if n < (replica.endpoint.described.max_model_len or n + 1)]
        found = await asyncio.gather(
            *(
                likeliest(replica.endpoint, scores.ids[:length], model=model, seconds=PROBE_SECONDS)
                for length in lengths
            )
        )
    except (*UNREACHABLE, EngineError, InvalidAnswer) as error:
        raise WeightsNotTaken(
            f"{replica.name} cannot be probed for {version}: {describe_error(error)}"
        ) from error
    gaps = [abs(a - b) for (_, a), b in zip(found, scores.logprobs, strict=False)]
    worst = max(gaps) if all(map(math.isfinite, gaps)) else math.inf
    dtype = _coarser(scores.dtype, replica.dtype or scores.dtype)
    result = ProbeResult(worst, TOLERANCES[dtype], dtype)
    if not worst <= result.tolerance:
        raise WeightsNotTaken(
            f"{replica.name} took {version} and serves other weights: its {result.text}"
        )
    return result


def _coarser(first: str, second: str) -> str:
    known = [dtype for dtype in (first, second) if dtype in TOLERANCES]
    return max(known, key=lambda dtype: TOLERANCES[dtype], default="float32")
