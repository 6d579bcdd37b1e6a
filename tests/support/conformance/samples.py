"""Drawing samples from an engine under test, with a client that is closed afterwards."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import msgspec

from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.policy import Completion, Draft, Partial, Request
from holdfast.policy.retry import RetryPolicy
from holdfast.records.encoding.tokens import pack_ids, pack_logprobs, unpack_ids, unpack_logprobs
from holdfast.records.sampling import Sampling
from holdfast.records.step import VersionSpan
from support.conformance.engines import WILD, Engine

RETRY = RetryPolicy(tries=5, deadline=300, try_timeout=120, stall_timeout=120, base=0.05, cap=0.5)
MANY = 32
_SPECIAL = re.compile("<.+>")
Saw = Callable[[Draft], Awaitable[None]]


@asynccontextmanager
async def policy_for(engine: Engine, *, check: bool = True) -> AsyncIterator[EnginePolicy]:
    policy = EnginePolicy(
        engine.server.url, engine.server.model, dialect=engine.named, retry=RETRY, patience=300
    )
    try:
        if check:
            await policy.check()
        yield policy
    finally:
        await policy.aclose()


def request(engine: Engine, seed: int | None = 1, **more: Any) -> Request:
    sampling = Sampling(
        more.pop("max_tokens", 24), more.pop("temperature", 1.0), stop=more.pop("stop", ())
    )
    prompt = more.pop("prompt", None) or engine.prompt()
    return Request(prompt, sampling, seed, f"{engine.name}/{seed}", **more)


def drawn(engine: Engine, *requests: Request) -> list[Completion]:
    """One after another."""

    async def main() -> list[Completion]:
        async with policy_for(engine) as policy:
            return [await policy.sample(item) for item in requests]

    return asyncio.run(main())


def drawn_together(engine: Engine, *requests: Request) -> list[Completion]:
    async def main() -> list[Completion]:
        async with policy_for(engine) as policy:
            return await asyncio.gather(*(policy.sample(item) for item in requests))

    return asyncio.run(main())


async def _nothing(draft: Draft) -> None: ...


def streamed(body: Request, saw: Saw = _nothing, *, every: int = 4) -> Request:
    """The same, streamed and kept in parts."""
    return msgspec.structs.replace(body, partial=Partial(saw, every))


def after(body: Request, completion: Completion, keep: int, version: str = "before") -> Request:
    """The same, of which the first tokens of `completion` are durable already."""
    draft = Draft(
        0,
        pack_ids(ids(completion)[:keep]),
        pack_logprobs(logprobs(completion)[:keep]),
        (VersionSpan(version, 0, keep),),
    )
    return msgspec.structs.replace(body, draft=draft)


@cache
def long_request(engine: Engine, tokens: int) -> tuple[Request, Completion]:
    """A request that runs up to `tokens`, and what an undisturbed engine answers to it."""
    body = request(engine, 1, max_tokens=tokens, temperature=WILD)
    (undisturbed,) = drawn(engine, body)
    assert undisturbed.finish_reason == "length"
    return body, undisturbed


def ids(completion: Completion) -> list[int]:
    return unpack_ids(completion.ids).tolist()


def logprobs(completion: Completion) -> list[float]:
    return unpack_logprobs(completion.logprobs).tolist()


def assert_well_formed(completion: Completion, *, max_tokens: int) -> None:
    """What a trainer relies on, whatever happened on the way."""
    sampled, scores = ids(completion), logprobs(completion)
    assert 0 < len(sampled) <= max_tokens
    assert len(scores) == len(sampled)
    assert all(-100 < score <= 0 for score in scores)
    assert completion.finish_reason in ("stop", "length")
    if completion.finish_reason == "length":
        assert len(sampled) == max_tokens
    ends = [0, *(span.end for span in completion.versions)]
    assert [span.start for span in completion.versions] == ends[:-1]
    assert ends[-1] == len(sampled)


def plain_text(engine: Engine, tokens: Sequence[int]) -> str:
    """The text that engines look for stop strings in: special tokens are not part of it."""
    decode = engine.renderer.decode
    return decode([token for token in tokens if not _SPECIAL.fullmatch(decode([token]))])


def tokens_until(engine: Engine, stop: str, tokens: Sequence[int]) -> int:
    """How many tokens there are when `stop` is complete."""
    return next(n for n in range(len(tokens) + 1) if stop in plain_text(engine, tokens[:n]))


def is_plain(text: str) -> bool:
    return len(text) > 1 and text.isascii() and text.isprintable() and "<" not in text
