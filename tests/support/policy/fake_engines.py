"""A policy in front of the fake engine."""

import asyncio
from array import array
from collections.abc import Callable

from holdfast.policy.client.circuit_breaker import CircuitBreaker
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.dialects.dialect import Kind
from holdfast.policy.policy import Completion, Request
from holdfast.policy.retry import RetryPolicy
from holdfast.records.sampling import Sampling
from holdfast.testing import FakeEngine

PROMPT = array("i", list(b"say something"))
QUICK = RetryPolicy(tries=3, deadline=60, try_timeout=20, base=0.01, cap=0.02)


def request(name: str = "r", *, prompt: "array[int]" = PROMPT, max_tokens: int = 64) -> Request:
    return Request(prompt, Sampling(max_tokens), seed=7, id=name, stop_token_ids=(257,))


async def sample(policy: EnginePolicy, body: Request | None = None) -> Completion:
    try:
        return await policy.sample(body or request())
    finally:
        await policy.aclose()


def sample_now(
    engine: FakeEngine,
    body: Request | None = None,
    *,
    kind: Kind = Kind.VLLM,
    retry: RetryPolicy = QUICK,
) -> Completion:
    async def main() -> Completion:
        policy = EnginePolicy(engine.url, engine.model, dialect=kind, retry=retry)
        await policy.check()
        return await sample(policy, body)

    return asyncio.run(main())


def breaker_of(policy: EnginePolicy) -> CircuitBreaker:
    return policy.endpoints[0].breaker


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(240):
        while not true():
            await asyncio.sleep(0.01)
