"""Finds out which distribution an engine's logprobs have, and whether two engines serve one model.

Few engines publish the distribution, so it is measured. The probe samples the most likely tokens
three times: greedily, at a temperature close to 0, and from a distribution that is cut to almost
one token. All three samples have the same tokens. Greedy replies have the logprobs of the model's
own distribution. In the other two samples, the same tokens are nearly certain. So their logprobs
are nearly 0 if they include temperature or cuts. The result does not depend on chance, on seeds, or
on the last digits of a logprob, which differ from batch to batch.

Two models under one name would be mixed without notice, because the name of a model proves nothing.
So the probe compares which token is the likeliest after fixed prompts, and its logprob. Data types,
kernels and batches move a logprob a little, and change the token only if two tokens are about
equally likely. In measurements, float32 and bfloat16 had at least 15 of 16 tokens in common, and
logprobs within 0.1 nats. Two different models had no token in common, even if both were untrained
and had similar logprobs.
"""

import asyncio
import math
from array import array
from collections.abc import Awaitable, Callable, Sequence
from itertools import takewhile

import aiohttp

from holdfast.policy.client.endpoint import Endpoint
from holdfast.policy.client.probe import UNREACHABLE, describe_error
from holdfast.policy.dialects.dialect import (
    Dialect,
    EngineError,
    InvalidAnswer,
    Piece,
    one_try,
)
from holdfast.policy.policy import Request
from holdfast.records.errors import EngineUnavailable
from holdfast.records.samples.logprobs import LogprobsMode
from holdfast.records.sampling import Sampling

Post = Callable[[str, str, object], Awaitable[bytes]]

TOKENS = 8
COLD_TEMPERATURE = 0.01
"""The temperature of the second sample, and the top_p of the third. vLLM raises lower temperatures
to this value."""
GREEDY = Sampling(TOKENS, temperature=0.0)
TEMPERED = Sampling(TOKENS, temperature=COLD_TEMPERATURE)
CUT = Sampling(TOKENS, top_p=COLD_TEMPERATURE)
PROMPTS = ((5, 6, 7, 8), (9, 10), (1,))
"""Prompts that make no sense, so that no model is certain of the next token."""
MIN_NATS = 0.5
"""The least sum of the greedy tokens' negative logprobs. If the tokens are more certain, they do
not show the mode."""
SAME_RATIO = 0.75
CERTAIN_RATIO = 0.25
TOLERANCES = {"float32": 2e-3, "bfloat16": 0.5, "float16": 0.1}
"""Tolerances in nats for the worst token. Measured differences: 1e-5 in float32, 0.18 in bfloat16.
"""
MOST = max(TOLERANCES.values())
"""The tolerance for engines with unknown data types."""
LENGTHS = range(2, 50, 3)
"""The lengths of the prompts, which are beginnings of one sequence."""
SEQUENCE = [(7919 * number + 11) % 89 + 1 for number in range(LENGTHS[-1])]
"""Low ids, which every vocabulary has. The sequence makes no sense, so that no model is certain of
it.
"""
LIKELIEST = Sampling(1, temperature=0.0)
Likeness = tuple[tuple[int, float], ...]
"""The likeliest token after each prompt, with its logprob. Empty if unknown."""


# --- the distribution


async def measure_logprobs_mode(post: Post, dialect: Dialect, model: str) -> LogprobsMode:
    """Measures the logprobs mode. Returns UNKNOWN if the engine's answers do not show the mode or
    come too late. Raises `EngineUnavailable` if the engine went away meanwhile, because a restarted
    engine may have other options."""
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
        mode = _mode(_is_in(tempered, greedy), _is_in(cut, greedy))
        if mode is not LogprobsMode.UNKNOWN:
            return mode
    return LogprobsMode.UNKNOWN


async def _sample(
    post: Post,
    dialect: Dialect,
    model: str,
    prompt: tuple[int, ...],
    sampling: Sampling,
    lost: list[aiohttp.ClientConnectionError],
) -> Piece | None:
    """Returns the sample, or None after an error. If the connection failed, its error is appended
    to `lost`."""
    ids = array("i", prompt)
    request = Request(ids, sampling, None, "logprobs")
    body = dialect.body(one_try(request, model, max_tokens=TOKENS))
    try:
        return dialect.whole(await post("POST", dialect.path, body))
    except (*UNREACHABLE, InvalidAnswer, EngineError) as error:
        if isinstance(error, aiohttp.ClientConnectionError) and not isinstance(error, TimeoutError):
            lost.append(error)
        return None


def _is_in(other: Piece, greedy: Piece) -> bool | None:
    """Returns whether the logprobs of `other` include the effect of its temperature or top_p, or
    None if the tokens do not show it."""
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


# --- the model


async def likeliest(
    endpoint: Endpoint, ids: Sequence[int], *, model: str, seconds: float
) -> tuple[int, float]:
    """Returns the token that the engine finds likeliest after `ids`, with its logprob. `model`
    is the name in the request. Raises the errors of `UNREACHABLE`, `EngineError` and
    `InvalidAnswer`."""
    request = Request(array("i", ids), LIKELIEST, None, "likeness")
    adapter = model if model != endpoint.model else ""
    body = endpoint.dialect.body(one_try(request, model, max_tokens=1, adapter=adapter))
    raw = await endpoint.send("POST", endpoint.dialect.path, body, seconds=seconds)
    piece = endpoint.dialect.whole(raw)
    if not piece.ids or not piece.logprobs:
        raise InvalidAnswer("it gives no logprobs")
    return piece.ids[0], piece.logprobs[0]


async def likeness_of(endpoint: Endpoint, *, seconds: float) -> Likeness:
    """Returns the engine's likeliest tokens, or () if the engine does not give them."""
    if not endpoint.dialect.has_tokens:
        return ()
    longest = endpoint.described.max_model_len or math.inf
    prompts = [SEQUENCE[:length] for length in LENGTHS if length < longest]
    probes = (
        likeliest(endpoint, prompt, model=endpoint.model, seconds=seconds) for prompt in prompts
    )
    try:
        return tuple(await asyncio.gather(*probes))
    except (*UNREACHABLE, EngineError, InvalidAnswer):
        return ()  # The first calls will report what is wrong.


def why_different(first: Likeness, other: Likeness) -> str | None:
    """Returns the reason, as a part of a sentence, why two engines serve different models. Returns
    None if the models are alike or this is unknown."""
    pairs = list(zip(first, other, strict=False))
    same = sum(a[0] == b[0] for a, b in pairs)
    apart = max((abs(a[1] - b[1]) for a, b in pairs), default=0.0)
    if 2 * same >= len(pairs) and apart <= MOST:
        return None
    return (
        f"after the same {len(pairs)} prompts, {same} of their likeliest tokens are the same, and "
        f"the logprobs differ by up to {apart:.2g} nats"
    )
