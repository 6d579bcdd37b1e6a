"""A seeded reply that is broken off is the one that was never broken off, over real sockets.

The fake engine begins a seed's noise anew with each request here, as vLLM does.
"""

import asyncio
from collections.abc import Iterator

import pytest
from msgspec import structs

from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.dialects.dialect import Seeds
from holdfast.policy.policy import Completion, Partial, Request
from holdfast.testing import FakeEngine, Fault, FaultKind
from holdfast.testing.fake_engine.options import Dialect
from support.policy.drafts import Kept
from support.policy.fake_engines import QUICK, request

LONG = 60
BREAKS = (
    FaultKind.ABORT,
    FaultKind.STREAM_CUT,
    FaultKind.STREAM_ERROR,
    FaultKind.STREAM_END,
    FaultKind.RESET_AFTER,
    FaultKind.TRUNCATED_BODY,
    FaultKind.ERROR_500,
)
DIALECTS: tuple[Dialect, ...] = ("vllm", "vllm-scale-out")


@pytest.fixture(scope="module", params=DIALECTS)
def engine(request: pytest.FixtureRequest) -> Iterator[FakeEngine]:
    with FakeEngine(mean_length=0, seeds="request", dialect=request.param) as engine:
        yield engine


def sampled(engine: FakeEngine, body: Request, *faults: Fault) -> Completion:
    async def main() -> Completion:
        policy = EnginePolicy(engine.url, engine.model, retry=QUICK)
        try:
            await policy.check()
            assert policy.seeds is Seeds.REQUEST
            return await policy.sample(body)
        finally:
            await policy.aclose()

    engine.set_faults(*faults)
    return asyncio.run(main())


@pytest.mark.parametrize("kind", BREAKS, ids=str)
def test_a_whole_reply_that_is_broken_off_has_the_tokens_of_an_undisturbed_one(
    engine: FakeEngine, kind: FaultKind
) -> None:
    body = request(max_tokens=LONG)
    undisturbed = sampled(engine, body)
    completion = sampled(engine, body, Fault(kind, times=2))
    assert completion.tries == 3
    assert (completion.ids, completion.logprobs) == (undisturbed.ids, undisturbed.logprobs)
    assert (completion.versions, completion.seams) == (undisturbed.versions, ())


def test_without_a_seed_the_tokens_that_are_there_are_kept(engine: FakeEngine) -> None:
    engine.reset()
    changed = structs.replace(request(max_tokens=LONG), seed=None)
    completion = sampled(engine, changed, Fault(FaultKind.ABORT, after=20))
    assert completion.seams == (20,)
    assert engine.stats().tokens == LONG


def test_what_is_durable_in_parts_is_kept_and_its_rest_is_another_one(engine: FakeEngine) -> None:
    kept, body = Kept(), request(max_tokens=LONG)
    changed = structs.replace(body, partial=Partial(kept.save, 1))
    undisturbed = sampled(engine, request(max_tokens=LONG))
    completion = sampled(engine, changed, Fault(FaultKind.ABORT, after=20))
    assert completion.seams == (20,)
    assert completion.ids[:80] == undisturbed.ids[:80]
    assert completion.ids != undisturbed.ids


@pytest.mark.parametrize("deterministic", [True, False])
def test_sglang_says_whether_its_seeds_name_positions(*, deterministic: bool) -> None:
    """Deterministic inference has noise of the seed and the position, and without it none."""

    async def seeds_of(engine: FakeEngine) -> Seeds:
        policy = EnginePolicy(engine.url, engine.model)
        try:
            await policy.check()
            return policy.seeds
        finally:
            await policy.aclose()

    seeds = "position" if deterministic else "request"
    with FakeEngine(dialect="sglang", describes=False, seeds=seeds) as engine:
        result = asyncio.run(seeds_of(engine))
    assert result is (Seeds.POSITION if deterministic else Seeds.NONE)
