"""Rows that name another model or endpoint: one client for each, over real sockets."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.policy.retry import RetryPolicy
from holdfast.records.errors import (
    BadRequest,
    EndpointDown,
    PolicyRefused,
    RowEndpointDown,
    UsageError,
)
from holdfast.records.history import History
from holdfast.records.message import user
from holdfast.records.sampling import Sampling
from holdfast.records.task import Task
from holdfast.rollout.context import Rollout
from holdfast.rollout.processors.processor import RolloutConfig
from holdfast.rollout.processors.row_clients import ClientCache
from holdfast.rollout.processors.training import TrainingRolloutProcessor
from holdfast.testing import FakeEngine
from support.rollout.stage import Oracle, TrajectoryUnderTest

NOWHERE = "http://127.0.0.1:9"
QUICK = RetryPolicy(tries=1)


@pytest.fixture(scope="module")
def shared() -> Iterator[FakeEngine]:
    with FakeEngine(mean_length=6) as engine:
        yield engine


@pytest.fixture
def engine(shared: FakeEngine) -> FakeEngine:
    shared.reset()
    return shared


@pytest.fixture
def life(monkeypatch) -> list[str]:
    """What happens to every client, in order; it really happens."""
    seen: list[str] = []
    check, close = EnginePolicy.check, EnginePolicy.aclose

    async def checked(self) -> None:
        seen.append(f"check {self.model}")
        await check(self)

    async def closed(self) -> None:
        seen.append(f"close {self.model}")
        await close(self)

    monkeypatch.setattr(EnginePolicy, "check", checked)
    monkeypatch.setattr(EnginePolicy, "aclose", closed)
    return seen


def row(name: str, **params: object) -> Task:
    return Task(id=name, messages=(user(f"do {name}"),), metadata={"completion_params": params})


async def through(
    processor: TrainingRolloutProcessor, *tasks: Task, policy: object = None
) -> list[tuple[object, History]]:
    """All rows at once, each in its own trajectory: what became of it, and its history."""
    plays = [TrajectoryUnderTest(policy or Oracle(), task=task) for task in tasks]
    sessions = {subject.task.id: await subject.session() for subject in plays}
    config = RolloutConfig("oracle", Sampling(), lambda task: Rollout(sessions[task.id]))
    try:
        await processor.setup()
        ended = await asyncio.gather(*processor(tasks, config), return_exceptions=True)
    finally:
        await processor.acleanup()
    return [(end, await subject.history()) for end, subject in zip(ended, plays, strict=True)]


def test_rows_of_one_endpoint_and_model_share_a_client_that_is_checked_and_closed_once(
    engine, life
):
    base = {"base_url": engine.url, "model": engine.model}
    tasks = [row(name, **base) for name in "abcd"]
    tasks.append(row("e", base_url=f"{engine.url}/v1/", model=engine.model))
    ended = asyncio.run(through(TrainingRolloutProcessor(), *tasks))
    assert [end for end, _ in ended] == [None] * 5
    assert all(history.generations[0].model == "fake" for _, history in ended)
    assert engine.stats().completions == 5
    assert life == ["check fake", "close fake"]


def test_rows_that_name_the_runs_own_model_use_the_runs_own_policy(life):
    oracle = Oracle()
    tasks = [row("a", model="oracle"), row("b")]
    asyncio.run(through(TrainingRolloutProcessor({"model": "oracle"}), *tasks, policy=oracle))
    assert len(oracle.requests) == 2
    assert life == []


def test_the_runs_own_address_is_the_runs_own_client(engine, life):
    async def main():
        own = EnginePolicy(engine.url, engine.model)
        try:
            task = row("a", base_url=f"{engine.url}/v1", model=engine.model)
            return await through(TrainingRolloutProcessor(), task, policy=own)
        finally:
            await own.aclose()

    ((end, history),) = asyncio.run(main())
    assert end is None
    assert history.generations
    assert life == ["close fake"], "the run's own, closed by its owner"


def test_another_model_is_looked_for_where_the_runs_own_is(engine, life):
    async def main():
        own = EnginePolicy(engine.url, engine.model)
        try:
            return await through(TrainingRolloutProcessor(), row("a", model="other"), policy=own)
        finally:
            await own.aclose()

    ((end, _),) = asyncio.run(main())
    assert isinstance(end, BadRequest)
    assert "does not serve model 'other'; it serves: fake" in str(end)
    assert life == ["check other", "close other", "close fake"]


def test_what_a_rows_own_endpoint_refuses_costs_that_row_alone(engine):
    tasks = [
        row("fine", base_url=engine.url, model=engine.model),
        row("typo", base_url=engine.url, model="fkae"),
        row("down", base_url=NOWHERE, model="m"),
        row("nonsense", base_url="somewhere", model="m"),
    ]
    processor = TrainingRolloutProcessor(retry=QUICK, patience=0.1)
    fine, typo, down, nonsense = (end for end, _ in asyncio.run(through(processor, *tasks)))
    assert fine is None
    assert isinstance(typo, BadRequest)
    assert isinstance(down, RowEndpointDown)
    assert not down.retryable
    assert isinstance(nonsense, UsageError)


async def test_an_endpoint_that_was_down_is_looked_at_again():
    clients = ClientCache(retry=QUICK)
    with FakeEngine() as engine:
        engine.kill()
        client = clients.get((engine.url,), engine.model)
        with pytest.raises(EndpointDown):
            await client.check()
        engine.start()
        await client.check()
        await clients.aclose()


def test_an_endpoint_of_the_processors_own_is_checked_before_the_first_row(engine, life):
    processor = TrainingRolloutProcessor({"model": "fkae", "base_url": engine.url})
    with pytest.raises(PolicyRefused, match="does not serve model 'fkae'"):
        asyncio.run(through(processor, row("a")))
    assert life == ["check fkae", "close fkae"]
    assert engine.stats().completions == 0


async def test_what_is_recorded_replays_although_the_engine_is_gone(life):
    subject = TrajectoryUnderTest()

    async def once(processor: TrainingRolloutProcessor) -> None:
        session = await subject.session()
        config = RolloutConfig("oracle", Sampling(), lambda task: Rollout(session))
        try:
            await asyncio.gather(*processor([subject.task], config))
        finally:
            await processor.acleanup()

    with FakeEngine() as engine:
        subject.task = row("t", base_url=engine.url, model=engine.model)
        await once(TrainingRolloutProcessor())
    before = (await subject.history()).generations
    await once(TrainingRolloutProcessor())
    assert (await subject.history()).generations == before
    assert life == ["check fake", "close fake", "close fake"], "nobody asked the second client"


@asynccontextmanager
async def chat_only(keys: list[str | None] | None = None) -> AsyncIterator[str]:
    """An engine that serves a model, and knows nothing of token ids."""

    async def models(request: web.Request) -> web.Response:
        if keys is not None:
            keys.append(request.headers.get("Authorization"))
        return web.json_response({"data": [{"id": "m", "owned_by": "somebody"}]})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def test_an_engine_without_tokens_is_refused_where_the_run_has_tokens():
    async def main():
        async with chat_only() as url:
            return await through(TrainingRolloutProcessor(), row("a", base_url=url, model="m"))

    ((end, history),) = asyncio.run(main())
    assert isinstance(end, UsageError)
    assert "gives no token ids" in str(end)
    assert not history.generations


async def test_a_key_goes_to_its_own_address_alone():
    theirs: list[str | None] = []
    others: list[str | None] = []
    async with chat_only(theirs) as url, chat_only(others) as other:
        clients = ClientCache(api_keys={f"{url}/v1": "sk-1"})
        await clients.get((url,), "m").check()
        await clients.get((other,), "m").check()
        with pytest.raises(UsageError, match="share one key"):
            clients.get((url, other), "m")
        await clients.aclose()
    assert theirs == ["Bearer sk-1"]
    assert others == [None]


def test_another_voice_speaks_through_its_own_renderer(engine):
    class Shouting(ByteRenderer):
        def render(self, messages, tools):
            return super().render([user("SHOUTED")], tools)

    processor = TrainingRolloutProcessor(renderer=Shouting())
    task = row("a", base_url=engine.url, model=engine.model)
    asyncio.run(through(processor, task))
    (call,) = engine.calls()
    assert call.prompt_tokens == len(Shouting().render([], []))


@pytest.mark.parametrize("fails", [1, 2])
def test_every_client_is_closed_also_when_closing_one_fails(fails, monkeypatch):
    closed: list[str] = []
    close = EnginePolicy.aclose

    async def breaking(self) -> None:
        closed.append(self.model)
        await close(self)
        if self.model in ("a", "b")[:fails]:
            raise OSError(f"cannot close {self.model}")

    monkeypatch.setattr(EnginePolicy, "aclose", breaking)

    async def main() -> None:
        clients = ClientCache()
        for model in "abc":
            clients.get((NOWHERE,), model)
        try:
            await clients.aclose()
        finally:
            await clients.aclose()

    with pytest.raises(OSError if fails == 1 else ExceptionGroup) as caught:
        asyncio.run(main())
    assert closed == ["a", "b", "c"], "each once"
    if fails == 1:
        assert str(caught.value) == "cannot close a"
    else:
        assert [str(exception) for exception in caught.value.exceptions] == [
            "cannot close a",
            "cannot close b",
        ]
