"""Measures the distribution that an engine's logprobs belong to: no engine publishes it.

The most likely tokens are sampled three times: greedily, at a temperature close to 0, and from a
distribution that is cut to almost one token. All three give the same tokens. Greedy replies have
the logprobs of the model's own distribution; in the other two the same tokens are nearly certain,
and their logprobs nearly 0, if they include temperature or cuts. The result does not depend on
chance, seeds, or the last digits of a logprob, which differ from batch to batch.
"""

import asyncio
from array import array
from collections.abc import Awaitable, Callable
from itertools import takewhile

import aiohttp

from holdfast.policy.client.probe import UNREACHABLE, describe_error
from holdfast.policy.dialects.dialect import (
    Dialect,
    EngineError,
    InvalidAnswer,
    Piece,
    SampleRequest,
)
from holdfast.policy.policy import Request
from holdfast.records.errors import EngineUnavailable
from holdfast.records.samples.logprobs import LogprobsMode
from holdfast.records.sampling import Sampling

Post = Callable[[str, str, object], Awaitable[bytes]]

TOKENS = 8
COLD_TEMPERATURE = 0.01
"""vLLM raises lower temperatures to this. Also used as top_p."""
GREEDY = Sampling(TOKENS, temperature=0.0)
TEMPERED = Sampling(TOKENS, temperature=COLD_TEMPERATURE)
CUT = Sampling(TOKENS, top_p=COLD_TEMPERATURE)
PROMPTS = ((5, 6, 7, 8), (9, 10), (1,))
"""They make no sense, so that no model is certain of the next token."""
MIN_NATS = 0.5
"""The uncertainty of all greedy tokens together must be at least this."""
SAME_RATIO = 0.75
CERTAIN_RATIO = 0.25


async def measure_logprobs_mode(post: Post, dialect: Dialect, model: str) -> LogprobsMode:
    """UNKNOWN if the engine's answers do not show it, or do not come in time. `EngineUnavailable`
    if the engine went away meanwhile: what comes back in its place may have other options."""
    lost: list[aiohttp.ClientConnectionError] = []
    for prompt in PROMPTS:
        samples = [
            _sample(post, dialect, model, prompt, how, lost) for how in (GREEDY, TEMPERED, CUT)
        ]
        greedy, tempered, cut = await asyncio.gather(*samples)
        if lost:
            raise EngineUnavailable(describe_error(lost[0]), reached=False)
        if greedy is None or tempered is None or cut is None:
            return LogprobsMode.UNKNOWN
        found = _mode(_is_in(tempered, greedy), _is_in(cut, greedy))
        if found is not LogprobsMode.UNKNOWN:
            return found
    return LogprobsMode.UNKNOWN


async def _sample(
    post: Post,
    dialect: Dialect,
    model: str,
    prompt: tuple[int, ...],
    sampling: Sampling,
    lost: list[aiohttp.ClientConnectionError],
) -> Piece | None:
    """`lost`: gets the error of a connection that was lost, or could not be made."""
    ids = array("i", prompt)
    request = Request(ids, sampling, None, "logprobs")
    attempt = SampleRequest(request, model, ids, max_tokens=TOKENS, seed=None, stream=False)
    try:
        return dialect.whole(await post("POST", dialect.path, dialect.body(attempt)))
    except (*UNREACHABLE, InvalidAnswer, EngineError) as error:
        if isinstance(error, aiohttp.ClientConnectionError) and not isinstance(error, TimeoutError):
            lost.append(error)
        return None


def _is_in(other: Piece, greedy: Piece) -> bool | None:
    """Whether the logprobs of `other` include its sampling parameter; None: unknown."""
    ids = zip(greedy.ids or (), other.ids or (), strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], ids))
    greedy_nats, other_nats = (-sum((item.logprobs or ())[:same]) for item in (greedy, other))
    if greedy_nats < MIN_NATS:
        return None
    if other_nats <= CERTAIN_RATIO * greedy_nats:
        return True
    return False if SAME_RATIO * greedy_nats <= other_nats <= greedy_nats / SAME_RATIO else None


def _mode(has_temperature: bool | None, has_cuts: bool | None) -> LogprobsMode:
    if has_temperature is None or has_cuts is None:
        return LogprobsMode.UNKNOWN
    if not has_temperature:
        return LogprobsMode.RAW
    return LogprobsMode.PROCESSED if has_cuts else LogprobsMode.TEMPERED
