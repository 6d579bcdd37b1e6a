"""One side sends weights, another one samples, and they share a journal and engines alone: each as
its own process would, with a connection of its own to the journal."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.journal import open_journal
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.client.weight_gate import WeightGate
from holdfast.records.errors import EndpointDown
from holdfast.weights import sync as sync_module
from holdfast.weights.records import JournalRecords
from holdfast.weights.replica import resume_paused
from holdfast.weights.strategies.adapter import AdapterStrategy, adapter_name
from holdfast.weights.strategies.strategy import WeightStrategy
from support.policy.recorded import newest_record, record_weights
from support.records import consuming, make_tasks, spec
from support.weights.engines import RETRY, SEED, Synced, engine, synced, with_engines
from support.weights.lying_proxy import LyingProxy
from support.weights.versions import mislabelled, version_at


@asynccontextmanager
async def sampler_of(
    engines: Any, journal_path: Path, *, patience: float = 60.0
) -> AsyncIterator[Synced]:
    """Who knows what the journal says, and nothing else."""
    policy = EnginePolicy(
        [each.url for each in engines], engines[0].model, retry=RETRY, patience=patience
    )
    journal = open_journal(str(journal_path))
    try:
        run = await journal.find_run("run")
        assert run is not None
        await policy.check()
        policy.gate_by(WeightGate(JournalRecords(journal, run), patience=patience))
        yield Synced(policy, None, [])  # type: ignore[arg-type]
    finally:
        await policy.aclose()
        await journal.close()


@asynccontextmanager
async def two_sides(
    engines: Any, folder: Path, *strategies: WeightStrategy
) -> AsyncIterator[tuple[Synced, Synced]]:
    """The side that sends, and the side that samples."""
    async with AsyncExitStack() as stack:
        journal = open_journal(str(folder / "journal.db"))
        stack.push_async_callback(journal.close)
        run = await journal.create_run(spec("run"), make_tasks("a"))
        consumer = await consuming(journal, run)
        sender = await stack.enter_async_context(synced(engines, *strategies))
        sender.sync.record_in(JournalRecords(journal, run, consumer=consumer))
        sampler = await stack.enter_async_context(sampler_of(engines, folder / "journal.db"))
        yield sender, sampler


def names_of(completion: Any) -> set[str]:
    return {span.version for span in completion.versions}


@pytest.mark.parametrize("dialect", ["vllm-scale-out", "sglang", "vllm"])
def test_tokens_of_an_engine_that_was_started_anew_with_its_base_weights_never_count(
    tmp_path: Path, dialect: str
) -> None:
    async def body(engines: Any) -> None:
        version = version_at(tmp_path, 1)
        async with two_sides(engines, tmp_path) as (sender, sampler):
            await sender.sync.publish_first(version)
            calls = sampler.running(4)
            await sampler.under_way(4)
            engines[0].restart()
            calls += sampler.running(4, tokens=20)
            for number, completion in enumerate(await asyncio.gather(*calls)):
                assert names_of(completion) == {"step-1"}
                assert mislabelled(completion, sampler.prompt(number % 4), SEED, [version]) == []

    with_engines(body, {"dialect": dialect})


def test_an_update_reaches_who_samples_elsewhere_and_each_token_says_its_version(
    tmp_path: Path,
) -> None:
    async def body(engines: Any) -> None:
        versions = [version_at(tmp_path, step) for step in (1, 2)]
        async with two_sides(engines, tmp_path) as (sender, sampler):
            await sender.sync.publish_first(versions[0])
            calls = sampler.running(6)
            await sampler.under_way(6)
            await sender.sync.publish(versions[1])
            for number, completion in enumerate(await asyncio.gather(*calls)):
                assert completion.tries == 1, "no request was sent again"
                assert names_of(completion) == {"step-1", "step-2"}
                assert mislabelled(completion, sampler.prompt(number), SEED, versions) == []

    with_engines(body, {}, {})


def test_where_nobody_says_which_weights_sampled_a_token_replies_across_an_update_are_sampled_again(
    tmp_path: Path,
) -> None:
    async def body(engines: Any) -> None:
        versions = [version_at(tmp_path, step) for step in (1, 2)]
        async with two_sides(engines, tmp_path) as (sender, sampler):
            await sender.sync.publish_first(versions[0])
            calls = sampler.running(3)
            await sampler.under_way(3)
            await sender.sync.publish(versions[1])
            for number, completion in enumerate(await asyncio.gather(*calls)):
                assert names_of(completion) == {"step-2"}
                assert mislabelled(completion, sampler.prompt(number), SEED, versions) == []

    with_engines(body, {"dialect": "vllm"})


def test_whoever_is_started_anew_gets_weights_though_the_trainer_calls_no_engine(
    tmp_path: Path,
) -> None:
    """Engine and rollouter were started again, and the trainer waits for rollouts."""

    async def body(engines: Any) -> None:
        version = version_at(tmp_path, 1)
        async with two_sides(engines, tmp_path) as (sender, _):
            await sender.sync.publish_first(version)
            engines[0].restart()
            async with sampler_of(engines, tmp_path / "journal.db") as again:
                completion = await asyncio.wait_for(again.sample(tokens=20), 60)
            assert names_of(completion) == {"step-1"}
            assert mislabelled(completion, again.prompt(0), SEED, [version]) == []

    with_engines(body, {})


def test_who_sampled_before_a_restart_and_not_since_takes_the_weights_that_were_sent_since(
    tmp_path: Path,
) -> None:
    async def body(engines: Any) -> None:
        version = version_at(tmp_path, 1)
        async with two_sides(engines, tmp_path) as (sender, sampler):
            await sender.sync.publish_first(version)
            await sampler.sample(tokens=5)
            engines[0].restart()
            await sender.sample(tokens=5)  # The sender's own calls notice.
            before = await newest_record(sender.policy, engines[0].url)
            assert names_of(await sampler.sample(tokens=5)) == {"step-1"}
            assert await newest_record(sender.policy, engines[0].url) == before

    with_engines(body, {})


def test_without_a_trainer_a_call_ends_in_an_error_that_says_who_owes_the_weights(
    tmp_path: Path,
) -> None:
    async def body(engines: Any) -> None:
        async with two_sides(engines, tmp_path) as (sender, _):
            await sender.sync.publish_first(version_at(tmp_path, 1))
        engines[0].restart()
        async with sampler_of(engines, tmp_path / "journal.db", patience=1.0) as alone:
            with pytest.raises(EndpointDown, match=r"started anew.*trainer owes them"):
                await alone.sample(tokens=5)
            assert (await newest_record(alone.policy, engines[0].url)).state == "wanted"

    with_engines(body, {})


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_tokens_of_weights_that_an_engine_took_wrongly_are_dropped_wherever_they_are_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, stream: bool
) -> None:
    monkeypatch.setattr(sync_module, "MAX_SENDS", 1)

    async def body(engines: Any) -> None:
        versions = [version_at(tmp_path, step) for step in (1, 2)]
        async with two_sides(engines, tmp_path) as (sender, sampler):
            await record_weights(sender.policy, "default")
            calls = sampler.running(6, stream=stream)
            await sampler.under_way(6)
            await sender.sync.publish(versions[1])
            calls += sampler.running(6, tokens=20, stream=stream)
            for number, completion in enumerate(await asyncio.gather(*calls)):
                assert mislabelled(completion, sampler.prompt(number % 6), SEED, versions) == []

    # It answers 200, and keeps its old head.
    with_engines(body, {"tied": True}, {})


def test_an_adapter_is_asked_for_by_name_by_who_did_not_load_it(tmp_path: Path) -> None:
    async def body(engines: Any) -> None:
        versions = [version_at(tmp_path, step, rank=4) for step in (1, 2)]
        async with two_sides(engines, tmp_path, AdapterStrategy(rank=4)) as (sender, sampler):
            await sender.sync.publish_first(versions[0])
            calls = sampler.running(4)
            await sampler.under_way(4)
            await sender.sync.publish(versions[1])
            calls += sampler.running(4, tokens=20)
            for number, completion in enumerate(await asyncio.gather(*calls)):
                assert names_of(completion) == {"step-1" if number < 4 else "step-2"}
                assert mislabelled(completion, sampler.prompt(number % 4), SEED, versions) == []
            engines[0].restart()
            again = await asyncio.wait_for(sampler.sample(tokens=20), 60)
            assert names_of(again) == {"step-2"}
            assert sampler.policy.endpoints[0].adapter == adapter_name(versions[1])

    with_engines(body, {"max_lora_rank": 8})


# --- a proxy that lies


def keep_old(path: str, body: bytes) -> bytes | None:
    """A reload succeeds, and changes nothing."""
    return b'{"results": [null]}' if b"reload_weights" in body else None


@pytest.mark.parametrize("lie", [keep_old, None], ids=["old-weights", "slow"])
def test_a_proxy_that_answers_200_and_keeps_the_weights_or_is_slow_mislabels_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: Any
) -> None:
    monkeypatch.setattr(sync_module, "MAX_SENDS", 1000)

    async def body(engines: Any, proxy: LyingProxy) -> None:
        versions = [version_at(tmp_path, step) for step in (1, 2)]
        async with two_sides([proxy], tmp_path) as (sender, sampler):
            await sender.sync.publish_first(versions[0])
            calls = sampler.running(4)
            await sampler.under_way(4)
            proxy.delay = 0.05
            if lie is not None:
                proxy.lie = lie
            updating = asyncio.create_task(sender.sync.publish(versions[1]))
            await asyncio.sleep(1.0)
            proxy.lie = lambda path, body: None  # It comes to its senses.
            await updating
            calls += sampler.running(4, tokens=20)
            for number, completion in enumerate(await asyncio.gather(*calls)):
                assert names_of(completion) <= {"step-1", "step-2"}
                assert mislabelled(completion, sampler.prompt(number % 4), SEED, versions) == []
            failed = [line for line in sender.lines if "serves other weights" in line]
            assert bool(failed) == (lie is not None), sender.lines

    with engine() as server, LyingProxy(server.url) as proxy:
        proxy.model = server.model
        asyncio.run(body([server], proxy))


# --- who gives up


def test_an_engine_is_not_left_paused_by_a_trainer_that_gives_up(tmp_path: Path) -> None:
    async def body(engines: Any) -> None:
        async with two_sides(engines, tmp_path) as (sender, _):
            with pytest.raises(Exception, match="reset failed on purpose"):
                await sender.sync.publish_first(version_at(tmp_path, 1))
        async with sampler_of(engines, tmp_path / "journal.db") as other:
            assert not await other.policy.endpoints[0].is_paused()

    with_engines(body, {"fail": "reset"})


def test_an_engine_that_a_dead_trainer_left_paused_is_resumed_by_the_next_one() -> None:
    async def body(engines: Any) -> None:
        lines: list[str] = []
        policy = EnginePolicy(engines[0].url, engines[0].model)
        try:
            await policy.endpoints[0].send("POST", "/pause?mode=keep")
            assert await policy.endpoints[0].is_paused()
            await resume_paused([engines[0].url], api_key=None, report=lines.append)
            assert not await policy.endpoints[0].is_paused()
            assert lines == [f"weights: {engines[0].url} was left paused, and is resumed"]
        finally:
            await policy.aclose()

    with_engines(body, {})
