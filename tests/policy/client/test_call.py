"""The client against an engine that misbehaves, over a real socket."""

import asyncio
from array import array

import pytest

from holdfast.clock import SystemClock
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.policy import Completion
from holdfast.policy.retry import RetryPolicy
from holdfast.records.errors import (
    BadAnswer,
    BadRequest,
    ContextOverflow,
    EndpointDown,
    EngineUnavailable,
    HoldfastError,
    PolicyRefused,
)
from holdfast.testing import FakeEngine, Fault, FaultKind
from support.policy.fake_engines import QUICK, request, sample, sample_now


class HastyClock(SystemClock):
    """Sleeps are written down, not slept."""

    def __init__(self) -> None:
        self.delays: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.delays.append(seconds)
        await asyncio.sleep(0)


# --- faults that pass

PASSING = [
    Fault(FaultKind.RATE_LIMIT, times=2),
    Fault(FaultKind.ERROR_500, times=2),
    Fault(FaultKind.UNAVAILABLE, times=2),
    Fault(FaultKind.RESET_BEFORE, times=2),
    Fault(FaultKind.RESET_AFTER, times=2),
    Fault(FaultKind.HANG, times=2, seconds=0.01),
    Fault(FaultKind.MALFORMED_JSON, times=2),
    Fault(FaultKind.TRUNCATED_BODY, times=2),
    Fault(FaultKind.MISSING_IDS, times=2),
    Fault(FaultKind.LENGTH_MISMATCH, times=2),
    Fault(FaultKind.NAN_LOGPROB, times=2),
    Fault(FaultKind.WRONG_MODEL, times=2),
    Fault(FaultKind.ABORT, times=2),
]


@pytest.mark.parametrize("fault", PASSING, ids=lambda fault: fault.kind)
def test_a_fault_that_passes_is_retried_to_the_same_tokens(
    engine: FakeEngine, fault: Fault
) -> None:
    clean = sample_now(engine)
    engine.reset()
    engine.set_faults(fault)
    completion = sample_now(engine)
    assert (completion.ids, completion.logprobs) == (clean.ids, clean.logprobs)
    assert (clean.tries, completion.tries) == (1, 3)
    assert engine.stats().requests == 3
    assert engine.stats().faults == {fault.kind: 2}


def test_a_slow_answer_is_an_answer(engine: FakeEngine) -> None:
    engine.set_faults(Fault(FaultKind.SLOW, seconds=0.05))
    assert sample_now(engine).tries == 1


def test_a_hanging_try_is_given_up_and_tried_again(engine: FakeEngine) -> None:
    engine.set_faults(Fault(FaultKind.HANG))
    retry = RetryPolicy(tries=2, try_timeout=2.0, base=0.01)
    completion = asyncio.run(sample(EnginePolicy(engine.url, engine.model, retry=retry)))
    assert completion.tries == 2


async def test_one_calls_faults_touch_no_other_call(engine: FakeEngine) -> None:
    engine.set_faults(Fault(FaultKind.ERROR_500, matching="bad", times=0))
    policy = EnginePolicy(engine.url, engine.model, retry=QUICK)
    names = ["a", "bad", "c", "d"]
    results = await asyncio.gather(
        *(policy.sample(request(name)) for name in names), return_exceptions=True
    )
    await policy.aclose()
    a, bad, c, d = results
    assert isinstance(bad, EngineUnavailable)
    for fine in (a, c, d):
        assert isinstance(fine, Completion)
        assert fine.tries == 1


# --- Retry-After


@pytest.mark.parametrize("kind", [FaultKind.RATE_LIMIT, FaultKind.UNAVAILABLE])
def test_retry_after_is_honoured(engine: FakeEngine, kind: FaultKind) -> None:
    engine.set_faults(Fault(kind, retry_after=7))
    clock = HastyClock()
    policy = EnginePolicy(engine.url, engine.model, retry=QUICK, clock=clock)
    assert asyncio.run(sample(policy)).tries == 2
    assert len(clock.delays) == 1
    assert clock.delays[0] >= 7


def test_a_limit_on_requests_that_says_nothing_is_waited_for_like_one_that_does(
    engine: FakeEngine,
) -> None:
    engine.set_faults(Fault(FaultKind.RATE_LIMIT, times=4))
    clock, retry = HastyClock(), RetryPolicy()
    policy = EnginePolicy(engine.url, engine.model, retry=retry, clock=clock)
    assert asyncio.run(sample(policy)).tries == 5
    assert all(body >= least for body, least in zip(clock.delays, (4, 8, 16, 30), strict=True))


def test_a_retry_after_beyond_the_deadline_fails_at_once_and_says_so(engine: FakeEngine) -> None:
    engine.set_faults(Fault(FaultKind.RATE_LIMIT, retry_after=100))
    clock = HastyClock()
    policy = EnginePolicy(engine.url, engine.model, retry=QUICK, clock=clock)
    with pytest.raises(EngineUnavailable, match=r"429.*asks to wait 100 s"):
        asyncio.run(sample(policy))
    assert clock.delays == []


# --- faults that stay

STAYING = [
    (FaultKind.RATE_LIMIT, EngineUnavailable, "429"),
    (FaultKind.ERROR_500, EngineUnavailable, "500"),
    (FaultKind.UNAVAILABLE, EngineUnavailable, "503"),
    (FaultKind.RESET_BEFORE, EngineUnavailable, "lost"),
    (FaultKind.RESET_AFTER, EngineUnavailable, "lost"),
    (FaultKind.TRUNCATED_BODY, EngineUnavailable, "payload"),
    (FaultKind.MALFORMED_JSON, BadAnswer, "malformed"),
    (FaultKind.MISSING_IDS, BadAnswer, "no token_ids"),
    (FaultKind.LENGTH_MISMATCH, BadAnswer, "logprobs for"),
    (FaultKind.NAN_LOGPROB, BadAnswer, "not finite"),
    (FaultKind.WRONG_MODEL, BadAnswer, "'not-fake' answered"),
]


@pytest.mark.parametrize(("kind", "error", "says"), STAYING)
def test_a_fault_that_stays_is_an_error_after_all_tries(
    engine: FakeEngine, kind: FaultKind, error: type[HoldfastError], says: str
) -> None:
    engine.set_faults(Fault(kind, times=0))
    with pytest.raises(error, match=says) as caught:
        sample_now(engine)
    assert caught.value.retryable
    assert engine.stats().requests == QUICK.tries


def test_aborts_that_never_end_are_an_error_once_they_bring_nothing_more(
    engine: FakeEngine,
) -> None:
    engine.set_faults(Fault(FaultKind.ABORT, times=0))
    with pytest.raises(EngineUnavailable, match="aborted"):
        sample_now(engine)
    assert engine.stats().requests > QUICK.tries


# --- refusals


def test_an_unknown_model_is_refused_without_a_retry(engine: FakeEngine) -> None:
    with pytest.raises(PolicyRefused, match="`nope` does not exist"):
        asyncio.run(sample(EnginePolicy(engine.url, "nope", retry=QUICK)))
    assert engine.stats().requests == 1


def test_check_names_the_models_that_are_served(engine: FakeEngine) -> None:
    with pytest.raises(PolicyRefused, match="does not serve model 'nope'; it serves: fake"):
        asyncio.run(EnginePolicy(engine.url, "nope").check())


def test_check_passes_for_an_engine_that_serves_the_model(engine: FakeEngine) -> None:
    asyncio.run(EnginePolicy(f"{engine.url}/v1/", engine.model).check())


def test_check_says_that_nobody_answers() -> None:
    with pytest.raises(EndpointDown, match=r"127\.0\.0\.1:1 does not answer"):
        asyncio.run(EnginePolicy("http://127.0.0.1:1", "m").check())


def test_a_prompt_that_is_too_long_is_an_outcome_not_an_accident(engine: FakeEngine) -> None:
    policy = EnginePolicy(engine.url, engine.model, retry=QUICK)  # It was not asked for its limit.
    with pytest.raises(ContextOverflow, match="maximum context length"):
        asyncio.run(sample(policy, request(prompt=array("i", [97] * 3000))))
    assert engine.stats().requests == 1


def test_an_engine_that_calls_too_long_what_it_takes_is_out_of_order(engine: FakeEngine) -> None:
    engine.set_faults(Fault(FaultKind.CONTEXT_OVERFLOW))
    assert sample_now(engine).tries == 2
    engine.set_faults(Fault(FaultKind.CONTEXT_OVERFLOW, times=0))
    with pytest.raises(EngineUnavailable, match="though it takes 2048"):
        sample_now(engine)


def test_a_request_that_is_wrong_is_the_callers_mistake(engine: FakeEngine) -> None:
    with pytest.raises(BadRequest, match="out of vocabulary"):
        sample_now(engine, request(prompt=array("i", [999])))
    assert engine.stats().requests == 1


@pytest.mark.parametrize("name", ["line\nbreak", "größe", "\ud800", "x" * 100_000, ""])
def test_any_task_id_can_name_a_request(engine: FakeEngine, name: str) -> None:
    assert sample_now(engine, request(name)).tries == 1
    assert len(engine.requests()) == 1
