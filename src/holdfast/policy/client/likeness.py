"""Whether two engines serve the same model.

Two models under one name would be mixed without a word: an engine's name for its model proves
nothing. Its numbers do. After a fixed prompt, the logprob of the likeliest token depends little on
data types, kernels and batches, and much on the weights, whichever token that is.
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


async def best_logprob(
    endpoint: Endpoint, ids: Sequence[int], *, model: str, seconds: float
) -> float:
    """The engine's logprob of the token that it finds likeliest after `ids`. `model`: the name that
    it is asked for. Raises the errors of `UNREACHABLE`, `EngineError` and `InvalidAnswer`."""
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
    if not piece.logprobs:
        raise InvalidAnswer("it gives no logprobs")
    return piece.logprobs[0]


async def likeness_of(endpoint: Endpoint, *, seconds: float) -> tuple[float, ...]:
    """The numbers by which its model is known; () where the engine does not give them."""
    if not endpoint.dialect.has_tokens:
        return ()
    longest = endpoint.described.max_model_len or math.inf
    prompts = [SEQUENCE[:length] for length in LENGTHS if length < longest]
    asked = (
        best_logprob(endpoint, prompt, model=endpoint.model, seconds=seconds) for prompt in prompts
    )
    try:
        return tuple(await asyncio.gather(*asked))
    except (*UNREACHABLE, EngineError, InvalidAnswer):
        return ()  # Its first calls find out what is wrong with it.


def difference(one: Sequence[float], other: Sequence[float]) -> float:
    """In nats, of the worst of the tokens."""
    return max((abs(a - b) for a, b in zip(one, other, strict=False)), default=0.0)
