"""The client against an engine that misbehaves, over a real socket."""

import asyncio
import traceback
from array import array
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

import aiohttp
import pytest

from holdfast.clock import SystemClock
from holdfast.policy.pool import EnginePolicy
from holdfast.policy.policy import Completion, Request
from holdfast.policy.retry import RetryPolicy
from holdfast.records.errors import (
    BadAnswer,
    BadRequest,
    ContextOverflow,
    EndpointDown,
    EngineUnavailable,
    HoldfastError,
    PolicyRefused,
    UsageError,
)
from holdfast.records.sampling import Sampling
from holdfast.testing import FakeEngine, Fault, FaultKind

PROMPT = array("i", list(b"say something"))
QUICK = RetryPolicy(tries=3, deadline=60, try_timeout=20, base=0.01, cap=0.02)
KEY = "correct-horse-battery-staple"


class HastyClock(SystemClock):
    """Sleeps are written down, not slept."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.asked.append(seconds)
        await asyncio.sleep(0)


def request(name: str = "r", *, prompt: "array[int]" = PROMPT, max_tokens: int = 64) -> Request:
    return Request(prompt, Sampling(max_tokens), seed=7, id=name, stop_token_ids=(257,))


async def sample(policy: EnginePolicy, asked: Request | None = None) -> Completion:
    try:
        return await policy.sample(asked or request())
    finally:
        await policy.aclose()


def sample_now(engine: FakeEngine, asked: Request | None = None) -> Completion:
    return asyncio.run(sample(EnginePolicy(engine.url, engine.model, retry=QUICK), asked))


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.01)


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
    retry = RetryPolicy(tries=2, try_timeout=0.3, base=0.01)
    completion = asyncio.run(sample(EnginePolicy(engine.url, engine.model, retry=retry)))
    assert completion.tries == 2


def test_one_calls_faults_touch_no_other_call(engine: FakeEngine) -> None:
    engine.set_faults(Fault(FaultKind.ERROR_500, matching="bad", times=0))

    async def main() -> list[Completion | BaseException]:
        policy = EnginePolicy(engine.url, engine.model, retry=QUICK)
        names = ["a", "bad", "c", "d"]
        found = await asyncio.gather(
            *(policy.sample(request(name)) for name in names), return_exceptions=True
        )
        await policy.aclose()
        return found

    a, bad, c, d = asyncio.run(main())
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
    assert len(clock.asked) == 1
    assert clock.asked[0] >= 7


def test_a_retry_after_beyond_the_deadline_fails_at_once_and_says_so(engine: FakeEngine) -> None:
    engine.set_faults(Fault(FaultKind.RATE_LIMIT, retry_after=100))
    clock = HastyClock()
    policy = EnginePolicy(engine.url, engine.model, retry=QUICK, clock=clock)
    with pytest.raises(EngineUnavailable, match=r"429.*asks to wait 100 s"):
        asyncio.run(sample(policy))
    assert clock.asked == []


# --- faults that stay

STAYING = [
    (FaultKind.RATE_LIMIT, EngineUnavailable, "429"),
    (FaultKind.ERROR_500, EngineUnavailable, "500"),
    (FaultKind.UNAVAILABLE, EngineUnavailable, "503"),
    (FaultKind.RESET_BEFORE, EngineUnavailable, "lost"),
    (FaultKind.RESET_AFTER, EngineUnavailable, "lost"),
    (FaultKind.TRUNCATED_BODY, EngineUnavailable, "payload"),
    (FaultKind.ABORT, EngineUnavailable, "aborted"),
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
    with pytest.raises(ContextOverflow, match="maximum context length"):
        sample_now(engine, request(prompt=array("i", [97] * 3000)))
    assert engine.stats().requests == 1


def test_an_overflow_on_demand_is_the_same_outcome(engine: FakeEngine) -> None:
    engine.set_faults(Fault(FaultKind.CONTEXT_OVERFLOW))
    with pytest.raises(ContextOverflow):
        sample_now(engine)


def test_a_request_that_is_wrong_is_the_callers_mistake(engine: FakeEngine) -> None:
    with pytest.raises(BadRequest, match="out of vocabulary"):
        sample_now(engine, request(prompt=array("i", [999])))
    assert engine.stats().requests == 1


@pytest.mark.parametrize("name", ["line\nbreak", "größe", "\ud800", "x" * 100_000, ""])
def test_any_task_id_can_name_a_request(engine: FakeEngine, name: str) -> None:
    assert sample_now(engine, request(name)).tries == 1
    assert len(engine.requests()) == 1


# --- outages


def test_a_call_waits_for_an_engine_that_was_killed_and_goes_on_when_it_is_back() -> None:
    async def main(engine: FakeEngine) -> Completion:
        policy = EnginePolicy(engine.url, engine.model, retry=QUICK)
        call = asyncio.create_task(sample(policy))
        await until(lambda: engine.stats().in_flight == 1)
        engine.kill()
        await until(lambda: policy.gate.outages == 1)
        assert not call.done()
        assert policy.seconds_down > 0
        await asyncio.to_thread(engine.start)
        return await call

    with FakeEngine(delay=0.2) as engine:
        clean = sample_now(engine)
        assert asyncio.run(main(engine)).ids == clean.ids


def test_a_call_without_retries_still_waits_through_an_outage() -> None:
    async def main(engine: FakeEngine) -> Completion:
        policy = EnginePolicy(engine.url, engine.model, retry=RetryPolicy(tries=1))
        call = asyncio.create_task(sample(policy))
        await until(lambda: policy.gate.outages == 1)
        await asyncio.to_thread(engine.start)
        return await call

    with FakeEngine() as engine:
        engine.kill()
        assert asyncio.run(main(engine)).tries == 2


def test_an_outage_does_not_count_against_a_calls_deadline() -> None:
    async def main(engine: FakeEngine) -> Completion:
        retry = RetryPolicy(tries=3, deadline=0.5, base=0.001)
        policy = EnginePolicy(engine.url, engine.model, retry=retry)
        call = asyncio.create_task(sample(policy))
        await until(lambda: policy.seconds_down > 0.5)
        await asyncio.to_thread(engine.start)
        return await call

    with FakeEngine() as engine:
        engine.kill()
        asyncio.run(main(engine))


def test_an_outage_longer_than_patience_ends_all_calls() -> None:
    async def main(engine: FakeEngine) -> list[Completion | BaseException]:
        policy = EnginePolicy(engine.url, engine.model, retry=QUICK, patience=0.3)
        calls = [policy.sample(request(name)) for name in "abc"]
        found = await asyncio.gather(*calls, return_exceptions=True)
        with pytest.raises(EndpointDown):
            await policy.ready()
        await policy.aclose()
        return found

    with FakeEngine() as engine:
        engine.kill()
        for error in asyncio.run(main(engine)):
            assert isinstance(error, EndpointDown)
            assert not error.retryable
            assert "start it again" in str(error)


def test_a_call_that_brings_the_engine_down_every_time_is_given_up() -> None:
    async def main(engine: FakeEngine) -> None:
        policy = EnginePolicy(engine.url, engine.model, retry=RetryPolicy(tries=1))
        call = asyncio.create_task(sample(policy))
        for outages in (1, 2):
            await until(lambda: engine.stats().in_flight == 1)
            engine.kill()
            await until(lambda outages=outages: policy.gate.outages == outages)  # type: ignore[misc]
            await asyncio.to_thread(engine.start)
        with pytest.raises(EngineUnavailable, match="lost"):
            await call

    with FakeEngine(faults=[Fault(FaultKind.HANG, times=0)]) as engine:
        asyncio.run(main(engine))


def test_a_probe_does_not_queue_behind_calls_that_hold_all_connections(engine: FakeEngine) -> None:
    engine.set_faults(Fault(FaultKind.HANG, times=0))

    async def main() -> None:
        policy = EnginePolicy(engine.url, engine.model, retry=QUICK, connections=1)
        call = asyncio.create_task(sample(policy))
        await until(lambda: engine.stats().in_flight == 1)
        policy.gate.shut()
        await policy.ready()
        assert policy.gate.outages == 0
        call.cancel()
        await asyncio.wait({call})

    asyncio.run(main())


def test_a_machine_that_takes_no_connection_is_an_outage(engine: FakeEngine) -> None:
    class Unreachable:
        def post(self, *_: object, **__: object) -> object:
            raise aiohttp.ConnectionTimeoutError

    policy = EnginePolicy(engine.url, engine.model)
    policy._session = Unreachable()  # type: ignore[assignment]
    with pytest.raises(EngineUnavailable, match="took no connection") as caught:
        asyncio.run(policy._post(b"", request()))
    assert not caught.value.connected


def test_a_cancelled_call_ends_on_both_sides(engine: FakeEngine) -> None:
    engine.set_faults(Fault(FaultKind.HANG, times=0))

    async def main() -> None:
        call = asyncio.create_task(sample(EnginePolicy(engine.url, engine.model)))
        await until(lambda: engine.stats().in_flight == 1)
        call.cancel()
        await asyncio.wait({call})
        assert call.cancelled()
        await until(lambda: engine.stats().in_flight == 0)

    asyncio.run(main())


# --- secrets


def told(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


@pytest.mark.parametrize("kind", [*FaultKind])
def test_the_api_key_is_in_no_error_of_a_faulty_engine(engine: FakeEngine, kind: FaultKind) -> None:
    engine.set_faults(Fault(kind, times=0, seconds=0.01))
    policy = EnginePolicy(engine.url, engine.model, api_key=KEY, retry=QUICK)
    try:
        asyncio.run(sample(policy))
    except HoldfastError as error:
        assert KEY not in told(error)  # noqa: PT017
    else:
        assert kind == FaultKind.SLOW


@asynccontextmanager
async def parrot(status: int) -> AsyncIterator[str]:
    """A server that repeats the whole request, credentials included, in its answer."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(said)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + said)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("status", [200, 400, 401, 403, 404, 422, 429, 500, 503])
@pytest.mark.parametrize("method", ["sample", "check"])
def test_the_api_key_is_in_no_error_even_if_the_engine_repeats_it(status: int, method: str) -> None:
    async def main() -> None:
        async with parrot(status) as url:
            policy = EnginePolicy(url, "m", api_key=KEY, retry=QUICK, patience=0)
            work: Coroutine[object, object, object]
            work = policy.check() if method == "check" else policy.sample(request())
            with pytest.raises(HoldfastError) as caught:
                await work
            await policy.aclose()
            assert KEY not in told(caught.value)

    asyncio.run(main())


@pytest.mark.parametrize("status", [401, 403])
def test_check_says_that_the_key_was_refused(status: int) -> None:
    async def main() -> None:
        async with parrot(status) as url:
            with pytest.raises(PolicyRefused, match=str(status)):
                await EnginePolicy(url, "m").check()

    asyncio.run(main())


def test_credentials_in_the_address_are_not_shown() -> None:
    policy = EnginePolicy("http://me:hunter22@127.0.0.1:1", "m", retry=QUICK, patience=0)
    with pytest.raises(EndpointDown) as down:
        asyncio.run(sample(policy))
    with pytest.raises(EndpointDown) as nobody:
        asyncio.run(policy.check())
    assert "hunter22" not in told(down.value) + told(nobody.value)


def test_a_key_with_a_line_break_is_refused_before_any_work() -> None:
    with pytest.raises(UsageError, match="line break") as caught:
        EnginePolicy("http://127.0.0.1:1", "m", api_key=f"{KEY}\n")
    assert KEY not in told(caught.value)
