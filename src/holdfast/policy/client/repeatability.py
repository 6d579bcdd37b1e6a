"""Repeatability: what a seed is worth, tried and not taken on trust.

How an engine computes a batch may depend on what is in it: a seed that repeats for requests one
after another may not do so beside others. So the same request is made alone, beside others, and
where the engine promises it, from its own middle; tokens and logprobs are compared bit by bit. What
is said of it is what was tried, and no more.
"""

import asyncio

from msgspec import structs

from holdfast.policy.policy import Completion, Draft, Policy, Request
from holdfast.records.encoding.tokens import (
    count,
    pack_ids,
    pack_logprobs,
    unpack_ids,
    unpack_logprobs,
)

OTHER_REQUESTS = (1, 3, 7)
"""Numbers of other requests at the same time."""
_TRIED = "alone and beside 1, 3 and 7 other requests"


async def repeatability(policy: Policy, request: Request, *, seeds_by_position: bool) -> str:
    """The result as a text. `seeds_by_position`: the engine promises that a reply which continues
    from its tokens gets the same tokens as without an interruption."""
    first, second = await policy.sample(request), await policy.sample(request)
    if first.ids != second.ids:
        return "do not repeat: a run cannot be reproduced, only resumed"
    beside = [await _beside(policy, request, count=count) for count in OTHER_REQUESTS]
    if any(item.ids != first.ids for item in beside):
        return "repeat alone, and not beside other requests: a run can be resumed, not reproduced"
    if off := max(_difference(first, entry) for entry in (second, *beside)):
        return f"repeat the tokens, {_TRIED}; their logprobs differ by up to {off:.2g}"
    if not seeds_by_position:
        return f"repeat exactly for whole replies (tokens and logprobs, {_TRIED})"
    if (await _from_middle(policy, request, first)).ids != first.ids:
        return f"repeat exactly for whole replies only, although the engine says more ({_TRIED})"
    return f"repeat exactly (tokens and logprobs, {_TRIED}), also when a reply goes on after a kill"


async def _beside(policy: Policy, request: Request, *, count: int) -> Completion:
    """The reply, while other prompts of other lengths are sampled."""
    seed, prompt = request.seed or 0, request.prompt
    others = [
        structs.replace(request, prompt=prompt + prompt[:1] * n, seed=seed + n)
        for n in range(1, count + 1)
    ]
    # In the middle of them, so that it neither joins nor leaves an empty batch.
    half = count // 2
    together = (*others[:half], request, *others[half:])
    return (await asyncio.gather(*map(policy.sample, together)))[half]


async def _from_middle(policy: Policy, request: Request, whole: Completion) -> Completion:
    half = count(whole.ids) // 2
    ids, logprobs = unpack_ids(whole.ids)[:half], unpack_logprobs(whole.logprobs)[:half]
    draft = Draft(0, pack_ids(ids), pack_logprobs(logprobs))
    return await policy.sample(structs.replace(request, draft=draft))


def _difference(first: Completion, second: Completion) -> float:
    pairs = zip(unpack_logprobs(first.logprobs), unpack_logprobs(second.logprobs), strict=True)
    return max((abs(left - right) for left, right in pairs), default=0.0)
