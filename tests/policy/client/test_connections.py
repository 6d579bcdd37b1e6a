"""All requests go out at once, and the wait for a connection counts against no limit."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.retry import RetryPolicy
from holdfast.testing import FakeEngine, Fault, FaultKind
from support.policy.fake_engines import request, until

AT_ONCE = 1_500
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}


async def test_all_requests_are_under_way_at_once(engine: FakeEngine) -> None:
    engine.set_faults(Fault(FaultKind.HOLD, times=0))
    policy = EnginePolicy(engine.url, engine.model)
    calls = [asyncio.create_task(policy.sample(request())) for _ in range(AT_ONCE)]
    await until(lambda: engine.stats().in_flight == AT_ONCE)
    engine.release()
    assert {completion.tries for completion in await asyncio.gather(*calls)} == {1}
    await policy.aclose()


async def test_the_wait_for_a_connection_counts_against_no_time_limit(engine: FakeEngine) -> None:
    """The second call waits longer than a try, and longer than a call, may take. Its first try
    fails, and there is time for another one."""
    engine.set_faults(
        Fault(FaultKind.HOLD, matching="first"), Fault(FaultKind.ERROR_500, matching="second")
    )
    limits = RetryPolicy(tries=2, try_timeout=4, deadline=4, base=0.01)
    first = EnginePolicy(engine.url, engine.model, connections=1)
    second = EnginePolicy(engine.url, engine.model, connections=1, retry=limits)
    second.endpoints[0].connections = first.endpoints[0].connections
    held = asyncio.create_task(first.sample(request("first")))
    await until(lambda: engine.stats().in_flight == 1)
    waiting = asyncio.create_task(second.sample(request("second")))
    await asyncio.sleep(5)
    assert engine.stats().in_flight == 1
    engine.release()
    assert ((await held).tries, (await waiting).tries) == (1, 2)
    await first.aclose()
    await second.aclose()


FEW_FILES = """
import asyncio, resource, sys
from holdfast.policy.client.replicas import EnginePolicy
from support.policy.fake_engines import request

resource.setrlimit(resource.RLIMIT_NOFILE, (120, 120))

async def main():
    lines = []
    policy = EnginePolicy(sys.argv[1:], "fake", notify=lines.append)
    calls = [policy.sample(request()) for _ in range(400)]
    assert {completion.tries for completion in await asyncio.gather(*calls)} == {1}
    await policy.aclose()
    print(*lines, sep="\\n")

asyncio.run(main())
"""


def test_at_the_limit_of_open_files_calls_wait_and_a_line_says_so() -> None:
    with FakeEngine(delay=0.05) as first, FakeEngine(delay=0.05) as second:
        command = [sys.executable, "-c", FEW_FILES, first.url, second.url]
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True)
        assert first.stats().requests + second.stats().requests == 400
    lines = set(done.stdout.splitlines())
    assert len(lines) == 1
    assert "the limit of 120 open files (ulimit -Hn) allows no more" in lines.pop()
