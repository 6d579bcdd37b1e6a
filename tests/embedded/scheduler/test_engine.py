"""Pauses, clients that leave, and the bound of the queue."""

import asyncio
import threading
from typing import Any

import aiohttp
import pytest

from holdfast.embedded.model.load import LoadedModel
from holdfast.embedded.scheduler.engine import DecodeEngine, EngineStopped, PauseMode, QueueFull
from holdfast.embedded.scheduler.generation import Finish, Generation, TokenDelta
from holdfast.records.errors import UsageError
from support.embedded.client import (
    AwaitedGeneration,
    Client,
    ask,
    completion,
    sampling,
    serving,
    until,
)

PROMPT = [5, 6, 7]
LONG = {"max_tokens": 300, "ignore_eos": True}


def through(engine: DecodeEngine, ask_: Any) -> Any:
    async def main() -> Any:
        async with serving(engine) as client:
            return await ask_(client)

    return asyncio.run(main())


async def begun(engine: DecodeEngine, client: Client, path: str, body: Any) -> "asyncio.Task[Any]":
    before = engine.statistics.generation_tokens
    task = asyncio.create_task(client.ok(path, body))
    await until(lambda: engine.statistics.generation_tokens > before + 3)
    return task


def test_keep_stands_still_and_goes_on_to_the_same_end(own_engine: DecodeEngine) -> None:
    expected = ask(own_engine, PROMPT, max_tokens=200).result
    request = AwaitedGeneration(PROMPT, sampling(max_tokens=200), stream=True)
    own_engine.submit(request)
    request.next()
    own_engine.pause(PauseMode.KEEP).result(60)
    passes = own_engine.statistics.passes
    later = ask(own_engine, PROMPT)
    assert (own_engine.running, own_engine.waiting, own_engine.paused) == (1, 1, True)
    assert own_engine.statistics.passes == passes
    own_engine.resume().result(60)
    assert request.result == expected
    assert later.result == expected[:24]
    assert not own_engine.paused


@pytest.mark.parametrize("path", ["/v1/completions", "/inference/v1/generate"])
def test_abort_answers_200_with_what_there_is(own_engine: DecodeEngine, path: str) -> None:
    async def ask_(client: Client) -> Any:
        body: dict[str, Any] = completion(**LONG)
        if path != "/v1/completions":
            body = {"token_ids": PROMPT, "sampling_params": {**LONG, "seed": 7}}
        whole = await client.ok(path, body)
        task = await begun(own_engine, client, path, body)
        assert await client.ok("/pause?mode=abort") == {"status": "paused"}
        answer = await task
        waiting = asyncio.create_task(client.ok(path, body))
        await until(lambda: own_engine.waiting == 1)
        assert (await client.get("/is_paused"))[1] == '{"is_paused":true}'
        assert await client.ok("/resume") == {"status": "resumed"}
        return whole, answer, await waiting

    whole, answer, later = through(own_engine, ask_)
    choice = answer["choices"][0]
    ids = choice["token_ids"]
    assert choice["finish_reason"] == "abort"
    assert 3 < len(ids) < 300
    assert ids == whole["choices"][0]["token_ids"][: len(ids)]
    assert choice["weight_versions"] == [{"version": "v1", "start": 0, "end": len(ids)}]
    assert later["choices"] == whole["choices"], "a request that comes in a pause waits"


def test_abort_ends_a_stream_with_its_reason(own_engine: DecodeEngine) -> None:
    async def ask_(client: Client) -> Any:
        stream = asyncio.create_task(client.stream("/v1/completions", completion(**LONG)))
        await until(lambda: own_engine.statistics.generation_tokens > 3)
        await client.ok("/pause")
        events = await stream
        await client.ok("/resume")
        return events

    events = through(own_engine, ask_)
    assert events[-1] == "[DONE]"
    assert events[-2]["choices"][0]["finish_reason"] == "abort"
    ids = [token for event in events[:-1] for token in event["choices"][0]["token_ids"]]
    assert events[-2]["choices"][0]["weight_versions"][0]["end"] == len(ids)


def test_wait_finishes_what_runs_and_begins_nothing(own_engine: DecodeEngine) -> None:
    async def ask_(client: Client) -> Any:
        task = await begun(own_engine, client, "/v1/completions", completion(**LONG))
        pausing = asyncio.create_task(client.ok("/pause?mode=wait"))
        await until(lambda: own_engine.paused)
        later = asyncio.create_task(client.complete())
        await until(lambda: own_engine.waiting == 1)
        assert await pausing == {"status": "paused"}
        assert own_engine.running == 0
        assert own_engine.waiting == 1
        await client.ok("/resume")
        return await task, await later

    first, later = through(own_engine, ask_)
    assert first["choices"][0]["finish_reason"] == "length"
    assert later["choices"][0]["finish_reason"] == "length"


def test_a_mode_that_is_none_is_refused(engine: DecodeEngine) -> None:
    status, answer = through(engine, lambda client: client.post("/pause?mode=sleep"))
    assert (status, answer["error"]["param"]) == (400, "mode")
    assert not engine.paused


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_places(own_engine: DecodeEngine, stream: bool) -> None:
    async def ask_(client: Client) -> None:
        body = completion(**LONG, stream=stream, n=3)
        task = await begun(own_engine, client, "/v1/completions", body) if not stream else None
        if task is not None:
            task.cancel()
        else:
            response = await client.session.post("/v1/completions", json=body)
            await response.content.readline()
            response.close()
        await until(lambda: own_engine.running == 0)

    through(own_engine, ask_)
    assert own_engine.statistics.generation_tokens < 3 * 300
    assert len(own_engine._slots._free) == 4
    assert own_engine.statistics.finished == {"abort": 3}
    assert ask(own_engine, PROMPT).wait().finish_reason is Finish.LENGTH


def test_the_sink_of_what_is_cancelled_is_not_called_again(own_engine: DecodeEngine) -> None:
    """Not even with what the same step has sampled: its event loop may be closed by now."""
    other = Generation(PROMPT, sampling(), stream=True, sink=lambda *_: texts.append("other"))
    texts: list[str] = []

    def cancel_other(_: Generation, delta: TokenDelta) -> None:
        texts.append("first")
        own_engine.cancel(other)
        if delta.finish_reason is not None:
            ended.set()

    ended = threading.Event()
    first = Generation(PROMPT, sampling(), stream=True, sink=cancel_other)
    own_engine.submit(first, other)
    assert ended.wait(60)
    assert set(texts) == {"first"}
    assert own_engine.failure is None


def test_a_client_that_leaves_while_waiting_is_forgotten(own_engine: DecodeEngine) -> None:
    async def ask_(client: Client) -> None:
        await client.ok("/pause?mode=keep")
        task = asyncio.create_task(client.complete(n=5))
        await until(lambda: own_engine.waiting == 5)
        task.cancel()
        await until(lambda: own_engine.waiting == 0)
        await client.ok("/resume")

    through(own_engine, ask_)
    assert own_engine.statistics.generation_tokens == 0


def test_a_full_queue_answers_503_and_when_to_come_again(own_engine: DecodeEngine) -> None:
    async def ask_(client: Client) -> Any:
        await client.ok("/pause?mode=keep")
        waiting = asyncio.create_task(client.complete(n=6))
        await until(lambda: own_engine.waiting == 6)
        async with client.session.post("/v1/completions", json=completion(n=3)) as response:
            refused = response.status, response.headers["Retry-After"], await response.json()
        assert own_engine.waiting == 6, "all of a request, or nothing"
        fits = asyncio.create_task(client.complete(n=2))
        await until(lambda: own_engine.waiting == 8)
        await client.ok("/resume")
        return refused, await waiting, await fits

    (status, after, answer), *answered = through(own_engine, ask_)
    assert (status, int(after), answer["error"]["code"]) == (503, 1, 503)
    for item in answered:
        assert {choice["finish_reason"] for choice in item["choices"]} == {"length"}


def test_the_queue_bound_in_process(own_engine: DecodeEngine) -> None:
    own_engine.pause(PauseMode.KEEP).result(60)
    waiting = [ask(own_engine, PROMPT) for _ in range(8)]
    with pytest.raises(QueueFull, match="8 requests"):
        ask(own_engine, PROMPT)
    own_engine.resume().result(60)
    for item in waiting:
        item.wait()


@pytest.mark.parametrize(("prompt", "limit"), [([], 5), (PROMPT, 2000), (PROMPT, 0)])
def test_what_does_not_fit_is_refused(engine: DecodeEngine, prompt: list[int], limit: int) -> None:
    with pytest.raises(UsageError, match="maximum context length"):
        ask(engine, prompt, max_tokens=limit)


def test_closing_ends_what_is_in_flight(model: LoadedModel) -> None:
    engine = DecodeEngine(model, max_batch=2)
    engine.start()
    answers = [ask(engine, PROMPT, max_tokens=900) for _ in range(5)]
    engine.close()
    assert {answer.wait().finish_reason for answer in answers} == {Finish.ABORT}
    with pytest.raises(EngineStopped):
        ask(engine, PROMPT)
    with pytest.raises(EngineStopped):
        engine.resume()


def test_a_bug_in_a_step_fails_every_request_and_is_told(model: LoadedModel) -> None:
    engine = DecodeEngine(model, max_batch=2)
    engine.start()
    messages: list[bool] = []
    engine.on_failure = lambda: messages.append(True)
    engine._passes.cache.reserve = None  # type: ignore[assignment,method-assign]
    answers = [ask(engine, PROMPT) for _ in range(3)]
    assert {answer.wait().finish_reason for answer in answers} == {Finish.ERROR}
    engine._thread.join(60)
    assert messages == [True]
    assert isinstance(engine.failure, TypeError)
    with pytest.raises(EngineStopped) as caught:
        ask(engine, PROMPT)
    assert caught.value.__cause__ is engine.failure

    async def main() -> Any:
        async with serving(engine) as client:
            return (await client.get("/health"))[0], await client.post(
                "/v1/completions", completion()
            )

    health, (status, _) = asyncio.run(main())
    assert (health, status) == (503, 500)


def test_a_client_that_leaves_a_pause_does_no_harm(own_engine: DecodeEngine) -> None:
    async def ask_(client: Client) -> Any:
        task = await begun(own_engine, client, "/v1/completions", completion(**LONG))
        with pytest.raises(TimeoutError):
            await client.session.post("/pause?mode=wait", timeout=aiohttp.ClientTimeout(total=0.02))
        await client.ok("/resume")
        return await task

    answer = through(own_engine, ask_)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert own_engine.failure is None
