"""A policy in front of canned servers, opened and closed in one loop."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.dialects.dialect import Kind
from holdfast.policy.policy import Completion, Request
from holdfast.policy.retry import RetryPolicy
from holdfast.records.encoding.tokens import unpack_ids, unpack_logprobs
from support.policy.answers import MODEL, PATHS, models, request
from support.policy.canned_server import Canned, Reply

QUICK = RetryPolicy(tries=3, deadline=60, try_timeout=20, stall_timeout=20, base=0.001, cap=0.002)
ONCE = RetryPolicy(tries=1, deadline=60, try_timeout=20, stall_timeout=20)
Result = TypeVar("Result")


@asynccontextmanager
async def policy_at(
    *servers: Canned, kind: Kind | None = Kind.VLLM, retry: RetryPolicy = QUICK, **more: Any
) -> AsyncIterator[EnginePolicy]:
    urls = [server.url for server in servers]
    policy = EnginePolicy(urls, MODEL, dialect=kind, retry=retry, **more)
    try:
        yield policy
    finally:
        await policy.aclose()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(240):
        while not true():
            await asyncio.sleep(0.002)


def run(test: Coroutine[object, object, Result]) -> Result:
    return asyncio.run(test)


def sample(
    *replies: Reply,
    body: Request | None = None,
    kind: Kind = Kind.VLLM,
    retry: RetryPolicy = QUICK,
    model: str = MODEL,
) -> tuple[Completion, list[Any]]:
    """The completion that `replies` make, and the bodies of the requests that led to it."""

    async def main() -> tuple[Completion, list[Any]]:
        async with Canned() as server:
            server.always("/v1/models", models(model)).says(PATHS[kind], *replies)
            policy = EnginePolicy(server.url, model, dialect=kind, retry=retry)
            try:
                completion = await policy.sample(body or request())
            finally:
                await policy.aclose()
            return completion, server.bodies(PATHS[kind])

    return run(main())


def ids(completion: Completion) -> list[int]:
    return unpack_ids(completion.ids).tolist()


def logprobs(completion: Completion) -> list[float]:
    return unpack_logprobs(completion.logprobs).tolist()
