"""Whether two engines serve the same model.

Two models under one name would be mixed without a word: an engine's name for its model proves
nothing. Its numbers do: after fixed prompts, which token is the likeliest, and its logprob. Data
types, kernels and batches move a logprob a little, and change the token only where two are about
as likely. Measured: float32 and bfloat16 have at least 15 of 16 tokens in common, and logprobs
within 0.1 nats; two models have no token in common, also where both are untrained and their
logprobs are alike.
"""

import asyncio
import math
from array import array
from collections.abc import Sequence

from holdfast.policy.client.endpoint import Endpoint
from holdfast.policy.client.probe import UNREACHABLE
from holdfast.policy.dialects.dialect import EngineError, InvalidAnswer, SampleRequest
from holdfast.policy.policy import Request
from holdfast.records.sampling import Sampling

TOLERANCES = {"float32": 2e-3, "bfloat16": 0.5, "float16": 0.1}
"""In nats, for the worst of the tokens; float32 was seen to differ by 1e-5, bfloat16 by 0.18."""
MOST = max(TOLERANCES.values())
"""For engines whose data types are not known."""
LENGTHS = range(2, 50, 3)
"""Of the beginnings of one sequence that are the prompts."""
SEQUENCE = [(7919 * number + 11) % 89 + 1 for number in range(LENGTHS[-1])]
"""Low ids, which every vocabulary has; it makes no sense, so that no model is certain of it."""
GREEDY = Sampling(1, temperature=0.0)
Likeness = tuple[tuple[int, float], ...]
"""The likeliest token after each prompt, and its logprob; () where nobody knows."""


async def likeliest(
    endpoint: Endpoint, ids: Sequence[int], *, model: str, seconds: float
) -> tuple[int, float]:
    """The token that the engine finds likeliest after `ids`, and its logprob. `model`: the name
    that it is asked for. Raises the errors of `UNREACHABLE`, `EngineError` and `InvalidAnswer`."""
    prompt = array("i", ids)
    attempt = SampleRequest(
        Request(prompt, GREEDY, None, "likeness"),
        model,
        prompt,
        max_tokens=1,
        seed=None,
        stream=False,
        adapter=model if model != endpoint.model else "",
    )
    body = endpoint.dialect.body(attempt)
    raw = await endpoint.send("POST", endpoint.dialect.path, body, seconds=seconds)
    piece = endpoint.dialect.whole(raw)
    if not piece.ids or not piece.logprobs:
        raise InvalidAnswer("it gives no logprobs")
    return piece.ids[0], piece.logprobs[0]


async def likeness_of(endpoint: Endpoint, *, seconds: float) -> Likeness:
    """() where the engine does not give it."""
    if not endpoint.dialect.has_tokens:
        return ()
    longest = endpoint.described.max_model_len or math.inf
    prompts = [SEQUENCE[:length] for length in LENGTHS if length < longest]
    asked = (
        likeliest(endpoint, prompt, model=endpoint.model, seconds=seconds) for prompt in prompts
    )
    try:
        return tuple(await asyncio.gather(*asked))
    except (*UNREACHABLE, EngineError, InvalidAnswer):
        return ()  # Its first calls find out what is wrong with it.


def why_different(one: Likeness, other: Likeness) -> str | None:
    """Why two engines serve different models, as a part of a sentence; None if they do not, or
    nobody knows."""
    pairs = list(zip(one, other, strict=False))
    same = sum(a[0] == b[0] for a, b in pairs)
    apart = max((abs(a[1] - b[1]) for a, b in pairs), default=0.0)
    if 2 * same >= len(pairs) and apart <= MOST:
        return None
    return (
        f"after the same {len(pairs)} prompts, {same} of their likeliest tokens are the same, and "
        f"the logprobs differ by up to {apart:.2g} nats"
    )
