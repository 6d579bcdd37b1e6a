"""Fake engines that take weights, a policy over them, and requests that run while they change."""

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from typing import Any

from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.policy import Completion, Partial, Request
from holdfast.policy.retry import RetryPolicy
from holdfast.records.sampling import Sampling
from holdfast.testing import FakeEngine
from holdfast.weights.strategies.disk import DiskStrategy
from holdfast.weights.strategies.strategy import WeightStrategy
from holdfast.weights.sync import WeightSync
from support.weights.fake_engine.engine import WeightedEngine
from support.weights.fake_engine.weights import WeightOptions

# A trainer that is started again takes as long as the machine lets it.
RETRY = RetryPolicy(tries=8, deadline=280, try_timeout=280, stall_timeout=280, base=0.01, cap=0.05)
SEED, TOKENS = 7, 120


def engine(dialect: str = "vllm-scale-out", **weights: Any) -> FakeEngine:
    """Slow enough that weights change while a reply is sampled; it never ends by itself."""
    return WeightedEngine(
        dialect=dialect, mean_length=0, token_delay=0.004, weights=WeightOptions(**weights)
    )


def with_engines(
    body: Callable[[Any], Coroutine[object, object, None]], *options: dict[str, Any], **more: Any
) -> None:
    """Runs `body` with an engine for each of `options`. `more`: options of all of them."""
    with ExitStack() as stack:
        asyncio.run(body([stack.enter_context(engine(**more | each)) for each in options]))


class Synced:
    """Engines, their policy, and the way of weights into them."""

    def __init__(self, policy: EnginePolicy, sync: WeightSync, lines: list[str]):
        self.policy, self.sync, self.lines = policy, sync, lines

    def prompt(self, number: int, *, length: int = 6) -> list[int]:
        return [97 + (number * 3 + at) % 26 for at in range(length)]

    async def sample(
        self, number: int = 0, *, tokens: int = TOKENS, length: int = 6, stream: bool = True
    ) -> Completion:
        async def save(draft: object) -> None:
            return

        partial = Partial(save, 16) if stream else None
        return await self.policy.sample(
            Request(
                array("i", self.prompt(number, length=length)),
                Sampling(tokens),
                SEED,
                f"r{number}",
                home=str(number),
                family=str(number),
                partial=partial,
            )
        )

    def running(self, count: int, **more: Any) -> list[asyncio.Task[Completion]]:
        return [asyncio.create_task(self.sample(number, **more)) for number in range(count)]

    async def under_way(self, count: int) -> None:
        async with asyncio.timeout(60):
            while sum(endpoint.running for endpoint in self.policy.endpoints) < count:
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.1)

    @property
    def weights(self) -> list[str | None]:
        return [endpoint.weights for endpoint in self.policy.endpoints]


@asynccontextmanager
async def policy_of(urls: Sequence[str]) -> AsyncIterator[EnginePolicy]:
    """A policy that knows nothing of versions but what its engines say."""
    policy = EnginePolicy(list(urls), "fake", retry=RETRY, patience=60.0)
    try:
        await policy.check()
        yield policy
    finally:
        await policy.aclose()


@asynccontextmanager
async def synced(
    engines: Sequence[FakeEngine], *strategies: WeightStrategy, wanted: str = "auto", **more: Any
) -> AsyncIterator[Synced]:
    lines: list[str] = []
    policy = EnginePolicy(
        [engine.url for engine in engines],
        engines[0].model,
        retry=RETRY,
        patience=60.0,
        notify=lines.append,
    )
    async with AsyncExitStack() as stack:
        stack.push_async_callback(policy.aclose)
        await policy.check()
        ways = strategies or (DiskStrategy(),)
        sync = WeightSync(policy, ways, wanted=wanted, report=lines.append, **more)
        stack.push_async_callback(sync.aclose)
        await sync.start()
        yield Synced(policy, sync, lines)
