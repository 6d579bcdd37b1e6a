"""One side of the client benchmarks, in a process of its own."""

import asyncio
import json
import sys
import time
from array import array
from pathlib import Path

import aiohttp
import msgspec

# Imported before the clock starts: what is measured is the work.
import holdfast.engine.running.run
import holdfast.policy.client.replicas
from holdfast.policy.policy import Request
from holdfast.records.sampling import Sampling

CONCURRENCY = 256
TOKENS = 256
REQUESTS = 2048
STREAMS, STREAM_TOKENS, STREAMS_AT_ONCE = 96, 1024, 32
PROMPT = list(b"x" * 200)


class Logprobs(msgspec.Struct):
    token_logprobs: list[float]


class Choice(msgspec.Struct):
    token_ids: list[int]
    logprobs: Logprobs
    finish_reason: str | None


class Answer(msgspec.Struct):
    choices: list[Choice]


decoder = msgspec.json.Decoder(Answer)
encoder = msgspec.json.Encoder()


def body(number: int, *, tokens: int, stream: bool) -> dict[str, object]:
    asked: dict[str, object] = {
        "model": "fake", "prompt": PROMPT, "max_tokens": tokens, "temperature": 1.0,
        "logprobs": 0, "return_token_ids": True, "seed": number,
    }  # fmt: skip
    return asked | ({"stream": True} if stream else {})


async def bare(url: str, folder: str) -> None:
    """A loop of aiohttp requests whose answers are parsed by msgspec into what is needed."""
    slots = asyncio.Semaphore(CONCURRENCY)
    connector = aiohttp.TCPConnector(limit=CONCURRENCY)
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:

        async def call(number: int) -> None:
            data = encoder.encode(body(number, tokens=TOKENS, stream=False))
            async with slots, session.post(f"{url}/v1/completions", data=data) as response:
                choice = decoder.decode(await response.read()).choices[0]
                assert len(choice.token_ids) == len(choice.logprobs.token_logprobs)

        await asyncio.gather(*(call(number) for number in range(REQUESTS)))


async def client(url: str, folder: str) -> None:
    policy = holdfast.EnginePolicy(url, "fake", connections=CONCURRENCY)
    slots = asyncio.Semaphore(CONCURRENCY)

    async def call(number: int) -> None:
        async with slots:
            await policy.sample(Request(array("i", PROMPT), Sampling(TOKENS), number, f"{number}"))

    try:
        await asyncio.gather(*(call(number) for number in range(REQUESTS)))
    finally:
        await policy.aclose()


async def plain_stream(url: str, folder: str) -> None:
    """The same streams, read by hand: events split and parsed, tokens gathered, nothing kept."""
    slots = asyncio.Semaphore(STREAMS_AT_ONCE)
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(headers=headers) as session:

        async def call(number: int) -> None:
            ids: list[int] = []
            logprobs: list[float] = []
            data = encoder.encode(body(number, tokens=STREAM_TOKENS, stream=True))
            async with slots, session.post(f"{url}/v1/completions", data=data) as response:
                rest = b""
                async for chunk in response.content.iter_any():
                    *events, rest = (rest + chunk).split(b"\n\n")
                    for event in events:
                        if event == b"data: [DONE]":
                            continue
                        choice = decoder.decode(event[6:]).choices[0]
                        ids += choice.token_ids
                        logprobs += choice.logprobs.token_logprobs
            assert len(ids) == len(logprobs) == STREAM_TOKENS

        await asyncio.gather(*(call(number) for number in range(STREAMS)))


async def durable_stream(url: str, folder: str, partial_tokens: int) -> None:
    async def rollout(t: holdfast.Rollout) -> None:
        t.add(*t.task.messages)
        await t.generate()

    journal = holdfast.open_journal(Path(folder) / "journal.db")
    policy = holdfast.EnginePolicy(url, "fake")
    rows = [{"id": str(number), "prompt": "x" * 190} for number in range(STREAMS)]
    try:
        _, report = await holdfast.run(
            rollout, tasks=rows, policy=policy, journal=journal, name="bench", seed=1,
            sampling=Sampling(STREAM_TOKENS),
            settings=holdfast.Settings(concurrency=STREAMS_AT_ONCE, partial_tokens=partial_tokens),
        )  # fmt: skip
        assert report.sampled_tokens == STREAMS * STREAM_TOKENS
    finally:
        await policy.aclose()
        await journal.close()


async def partial(url: str, folder: str) -> None:
    await durable_stream(url, folder, 64)


async def whole(url: str, folder: str) -> None:
    """Streamed the same way, but no draft ever comes due."""
    await durable_stream(url, folder, 10**9)


def main() -> None:
    mode, url, folder = sys.argv[1:]
    side = {one.__name__: one for one in (bare, client, plain_stream, whole, partial)}[mode]
    cpu = time.process_time()
    asyncio.run(side(url, folder))
    print(json.dumps({"cpu": time.process_time() - cpu}))


main()
