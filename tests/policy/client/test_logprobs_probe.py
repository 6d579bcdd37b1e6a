"""Of which distribution an engine's logprobs are is measured, and replicas agree in it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest
from msgspec import structs

from holdfast.policy.client import circuit_breaker
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.dialects.dialect import Kind
from holdfast.policy.policy import Partial
from holdfast.records.errors import UsageError
from holdfast.records.samples.logprobs import LogprobsMode
from holdfast.testing import FakeEngine, Fault, FaultKind
from holdfast.testing.fake_engine.options import Dialect
from holdfast.testing.fake_engine.options import LogprobsMode as Mode
from support.policy.answers import PATHS, models, plain
from support.policy.canned_server import Answer, Canned, ReceivedRequest
from support.policy.clients import policy_at
from support.policy.drafts import Kept
from support.policy.fake_engines import QUICK, request, until

DIALECTS: tuple[Dialect, ...] = ("vllm", "vllm-scale-out", "sglang", "fireworks")
MODES: tuple[Mode, ...] = ("raw", "tempered", "processed")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circuit_breaker, "PROBE_BASE_SECONDS", 0.005)
    monkeypatch.setattr(circuit_breaker, "PROBE_MAX_SECONDS", 0.02)


@asynccontextmanager
async def policy_for(
    engines: Sequence[FakeEngine], *, check: bool = True, **more: Any
) -> AsyncIterator[EnginePolicy]:
    policy = EnginePolicy([engine.url for engine in engines], engines[0].model, retry=QUICK, **more)
    try:
        if check:
            await policy.check()
        yield policy
    finally:
        await policy.aclose()


def engine_with(mode: Mode, **more: Any) -> FakeEngine:
    """It does not say its mode, as no real engine does."""
    return FakeEngine(logprobs_mode=mode, describes=False, **more)


# --- measuring


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("mode", MODES)
async def test_it_is_measured_where_the_engine_does_not_say_it(
    mode: Mode, dialect: Dialect
) -> None:
    with engine_with(mode, dialect=dialect) as engine:
        async with policy_for([engine]) as policy:
            assert policy.logprobs_mode == mode
            assert (await policy.sample(request())).logprobs_mode == mode


async def test_an_engine_that_says_it_is_not_asked_for_tokens() -> None:
    with FakeEngine(logprobs_mode="raw") as engine:
        async with policy_for([engine]) as policy:
            assert policy.logprobs_mode is LogprobsMode.RAW
        assert engine.stats().requests == 0


def measured(greedy: list[float], tempered: list[float], cut: list[float]) -> LogprobsMode:
    """Of an engine that gives these logprobs, greedily, at a low temperature, at a low top_p."""

    def answer(query: ReceivedRequest) -> Answer:
        body = query.body
        logprobs = cut if body["top_p"] < 1 else tempered if body["temperature"] else greedy
        return plain(Kind.VLLM, range(40, 40 + len(logprobs)), logprobs=logprobs)

    async def main() -> LogprobsMode:
        async with Canned() as server, policy_at(server) as policy:
            server.always("/v1/models", models(logprobs_mode=None))
            server.always(PATHS[Kind.VLLM], answer)
            await policy.check()
            return policy.logprobs_mode

    return asyncio.run(main())


def test_what_differs_from_batch_to_batch_is_not_taken_for_a_temperature() -> None:
    raw, like_it, sure = [-1.5, -0.25], [-1.46, -0.27], [-0.01, 0.0]
    assert measured(raw, like_it, like_it) is LogprobsMode.RAW
    assert measured(raw, sure, like_it) is LogprobsMode.TEMPERED
    assert measured(raw, sure, sure) is LogprobsMode.PROCESSED


def test_what_does_not_tell_is_not_guessed() -> None:
    sure, torn = [-0.01, -0.02], [-0.8, -0.125]
    assert measured(sure, sure, sure) is LogprobsMode.UNKNOWN, "the model is certain"
    assert measured([-1.5, -0.25], torn, torn) is LogprobsMode.UNKNOWN, "neither one nor the other"
    logits = [-99.0, -25.0]
    assert measured([-1.5, -0.25], logits, logits) is LogprobsMode.UNKNOWN, "no logprobs at all"


async def test_an_engine_that_refuses_the_question_is_used_all_the_same() -> None:
    async with Canned() as server, policy_at(server) as policy:
        server.always("/v1/models", models(logprobs_mode=None))
        server.always(PATHS[Kind.VLLM], Answer(400, {"error": {"message": "no"}}))
        await policy.check()
        assert policy.logprobs_mode is LogprobsMode.UNKNOWN


# --- replicas


async def test_replicas_that_differ_are_refused_by_their_addresses() -> None:
    with engine_with("raw") as engine, engine_with("processed") as other:
        async with policy_for([engine, other], check=False) as policy:
            with pytest.raises(UsageError, match="--logprobs-mode processed_logprobs") as error:
                await policy.check()
        assert engine.url in str(error.value)
        assert other.url in str(error.value)


@pytest.mark.parametrize("late", [True, False], ids=["joins", "comes back"])
async def test_a_replica_that_differs_from_those_that_are_up_is_given_no_work(
    *, late: bool
) -> None:
    texts: list[str] = []
    with ExitStack() as stack:
        up = stack.enter_context(engine_with("processed"))
        away = stack.enter_context(engine_with("raw" if late else "processed"))
        if late:
            away.kill()
        async with policy_for([up, away], notify=texts.append) as policy:
            _, endpoint = policy.endpoints
            if not late:
                away.kill()
                away.start_with(logprobs_mode="raw")
                endpoint.breaker.trip()
            await until(lambda: endpoint.breaker.outages == 1)
            away.start()
            await until(lambda: away.stats().requests >= 6)  # Measured twice: still shut.
            assert not endpoint.breaker.is_passing
            modes = {(await policy.sample(request(str(n)))).logprobs_mode for n in range(8)}
            assert modes == {LogprobsMode.PROCESSED}
            away.kill()
            away.start_with(logprobs_mode="processed")
            away.start()
            await until(lambda: endpoint.breaker.is_passing)
            assert endpoint.logprobs_mode is LogprobsMode.PROCESSED


async def test_why_a_replica_is_kept_out_is_told() -> None:
    texts: list[str] = []
    with engine_with("processed") as up, engine_with("processed") as away:
        async with policy_for([up, away], notify=texts.append) as policy:
            _, endpoint = policy.endpoints
            away.kill()
            away.start_with(logprobs_mode="raw")
            away.start()
            endpoint.breaker.trip()
            await until(lambda: bool(texts))
        assert f"its logprobs are raw, those of {up.url} processed" in texts[0]


async def test_the_only_replica_may_come_back_with_other_options_and_its_answers_say_so() -> None:
    texts: list[str] = []
    with engine_with("processed") as engine:
        async with policy_for([engine], notify=texts.append) as policy:
            engine.kill()
            engine.start_with(logprobs_mode="raw")
            engine.start()
            policy.endpoints[0].breaker.trip()
            await policy.ready()
            assert (await policy.sample(request())).logprobs_mode is LogprobsMode.RAW
    assert [line for line in texts if "is back with raw logprobs (before: processed)" in line]


# --- one reply, several tries


async def test_a_reply_that_goes_on_elsewhere_has_the_mode_of_its_worse_part() -> None:
    kept = Kept()
    changed = structs.replace(request(), partial=Partial(kept.save, 4))
    with FakeEngine(mean_length=0, logprobs_mode="raw") as engine:
        engine.set_faults(Fault(FaultKind.ABORT, after=20, times=0))
        async with policy_for([engine]) as policy:
            call = asyncio.create_task(policy.sample(changed))
            await until(lambda: len(kept.ids) >= 20)
            call.cancel()
            await asyncio.wait([call])
    draft = structs.replace(kept.drafts[0], logprobs_mode=kept.drafts[-1].logprobs_mode)
    assert draft.logprobs_mode is LogprobsMode.RAW
    with FakeEngine(mean_length=0) as engine:
        async with policy_for([engine]) as policy:
            whole = await policy.sample(request())
            completion = await policy.sample(structs.replace(request(), draft=draft))
    assert whole.logprobs_mode is LogprobsMode.PROCESSED
    assert completion.logprobs_mode is LogprobsMode.RAW
