"""All requests go out at once, and the wait for a connection counts against no limit."""

import asyncio

from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.retry import RetryPolicy
from holdfast.testing import FakeEngine, Fault, FaultKind
from support.policy.fake_engines import request, until

AT_ONCE = 1_500


def test_all_requests_are_under_way_at_once(engine: FakeEngine) -> None:
    engine.set_faults(Fault(FaultKind.HOLD, times=0))

    async def main() -> None:
        policy = EnginePolicy(engine.url, engine.model)
        calls = [asyncio.create_task(policy.sample(request())) for _ in range(AT_ONCE)]
        await until(lambda: engine.stats().in_flight == AT_ONCE)
        engine.release()
        assert {completion.tries for completion in await asyncio.gather(*calls)} == {1}
        await policy.aclose()

    asyncio.run(main())


def test_the_wait_for_a_connection_counts_against_no_time_limit(engine: FakeEngine) -> None:
    """The second call waits longer than a try, and longer than a call, may take."""
    engine.set_faults(Fault(FaultKind.HOLD))
    limits = RetryPolicy(tries=1, try_timeout=4, deadline=4)

    async def main() -> None:
        first = EnginePolicy(engine.url, engine.model, connections=1)
        second = EnginePolicy(engine.url, engine.model, connections=1, retry=limits)
        second.endpoints[0].connections = first.endpoints[0].connections
        held = asyncio.create_task(first.sample(request()))
        await until(lambda: engine.stats().in_flight == 1)
        waiting = asyncio.create_task(second.sample(request()))
        await asyncio.sleep(5)
        assert engine.stats().in_flight == 1
        engine.release()
        assert (await held).tries == (await waiting).tries == 1
        await first.aclose()
        await second.aclose()

    asyncio.run(main())
