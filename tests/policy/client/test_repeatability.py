"""What is said of seeds is what was tried: alone, beside others, and from the middle."""

import asyncio
from array import array

import pytest
from msgspec import structs

from holdfast.policy.client.capability_check import OTHER_REQUESTS, repeatability
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.policy import Completion, Request
from holdfast.records.encoding.tokens import pack_ids, pack_logprobs
from holdfast.records.sampling import Sampling
from holdfast.testing import FakeEngine

REQUEST = Request(array("i", [5, 6, 7, 8]), Sampling(8), 7, "check")


class Batching:
    """Samples all that is asked for before it next gets a turn in one batch. `ids` and `logprob`
    say what a request gets in a batch of a size, the n-th time it is asked."""

    model = "batching"
    seconds_down = 0.0

    def __init__(self, ids=lambda size, time: 1, logprob=lambda size, time: -1.0, rest=1):
        self.ids, self.logprob, self.rest = ids, logprob, rest
        self.sizes: list[int] = []
        self._batch: list[Request] = []
        self._times = 0

    async def sample(self, request: Request) -> Completion:
        self._batch.append(request)
        await asyncio.sleep(0)
        size = len(self._batch)
        await asyncio.sleep(0)
        self._batch.clear()
        is_first = request.seed == REQUEST.seed
        if is_first:
            self._times += 1
            self.sizes.append(size)
        token = self.rest if request.draft.ids else self.ids(size, self._times)
        ids, logprob = [1, 1, token, 1], self.logprob(size, self._times)
        return Completion(
            pack_ids(ids), pack_logprobs([logprob] * 4), "stop", (), self.model, 1, 0.0
        )


def measured(policy, *, seeds_by_position: bool = False) -> str:
    return asyncio.run(repeatability(policy, REQUEST, seeds_by_position=seeds_by_position))


def test_batches_of_several_sizes_are_tried_before_exactness_is_claimed():
    policy = Batching()
    assert measured(policy).startswith("repeat exactly for whole replies")
    assert policy.sizes == [1, 1, *(others + 1 for others in OTHER_REQUESTS)]


@pytest.mark.parametrize(
    ("changes", "arguments"),
    [
        ({"ids": lambda size, time: time}, "do not repeat"),
        ({"ids": lambda size, time: size}, "repeat alone, and not beside other requests"),
        ({"ids": lambda size, time: int(size == 8)}, "repeat alone, and not beside"),
        ({"logprob": lambda size, time: -1.0 - size / 8}, "their logprobs differ by up to 0.88"),
        ({"logprob": lambda size, time: -float(time == 2)}, "their logprobs differ by up to 1"),
    ],
)
def test_what_differs_is_said(changes, arguments):
    message = measured(Batching(**changes), seeds_by_position=True)
    assert arguments in message
    assert "exactly" not in message


def test_a_promise_about_replies_that_go_on_is_tried():
    assert "also when a reply goes on" in measured(Batching(), seeds_by_position=True)
    message = measured(Batching(rest=2), seeds_by_position=True)
    assert "for whole replies only, although the engine says more" in message


def test_the_fake_engine_repeats_exactly():
    async def body(url: str) -> str:
        policy = EnginePolicy(url, "fake")
        try:
            await policy.check()
            return await repeatability(policy, structs.replace(REQUEST), seeds_by_position=True)
        finally:
            await policy.aclose()

    with FakeEngine() as engine:
        assert asyncio.run(body(engine.url)).startswith("repeat exactly (tokens and logprobs")
