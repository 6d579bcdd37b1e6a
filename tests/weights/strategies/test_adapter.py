"""LoRA adapters: a new name for each version, and an old one as long as a request can name it."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from holdfast.records.errors import UsageError
from holdfast.records.step import VersionSource
from holdfast.weights.strategies.adapter import AdapterStrategy, adapter_name
from holdfast.weights.version import WeightsNotTaken
from support.policy.clients import until
from support.policy.recorded import record_weights
from support.weights.engines import SEED, synced, with_engines
from support.weights.versions import mislabelled, version_at

LONG = 800
"""Tokens that are still being sampled when a slow machine has loaded an adapter."""


async def loaded(it: Any) -> list[list[str]]:
    listed = [await endpoint.models() for endpoint in it.policy.endpoints]
    return [[model.id for model in models if model.id != "fake"] for models in listed]


@pytest.mark.parametrize("dialect", ["vllm-scale-out", "vllm", "sglang"])
def test_nothing_stands_still_and_requests_end_with_the_adapter_that_they_named(
    tmp_path: Path, dialect: str
) -> None:
    async def body(engines: Any) -> None:
        versions = [version_at(tmp_path, step, rank=4) for step in (1, 2, 3)]
        async with synced(engines, AdapterStrategy(rank=4)) as it:
            await it.sync.publish_first(versions[0])
            calls = it.running(4, tokens=LONG)
            await it.under_way(4)
            await it.sync.publish(versions[1])
            assert await loaded(it) == [[adapter_name(versions[0]), adapter_name(versions[1])]] * 2
            assert it.sync.in_use() == {"step-1", "step-2"}, "its folder must stay"
            for number, completion in enumerate(await asyncio.gather(*calls)):
                (span,) = completion.versions
                assert (span.version, span.source) == ("step-1", VersionSource.ENGINE)
                assert completion.model == "fake"
                assert mislabelled(completion, it.prompt(number), SEED, versions) == []
            (span,) = (completion := await it.sample(tokens=5)).versions
            assert span.version == "step-2"
            assert mislabelled(completion, it.prompt(0), SEED, versions) == []
            await it.sync.publish(versions[2])
            assert await loaded(it) == [[adapter_name(versions[2])]] * 2, "old ones are unloaded"
            assert it.sync.in_use() == {"step-3"}

    with_engines(body, {"dialect": dialect}, {"dialect": dialect}, max_lora_rank=8)


def test_an_adapter_whose_folder_is_deleted_fails_its_requests(tmp_path: Path) -> None:
    """What keeping the folder is for: vLLM reads it again."""

    async def body(engines: Any) -> None:
        version = version_at(tmp_path, 1, rank=4)
        async with synced(engines, AdapterStrategy(rank=4)) as it:
            await it.sync.publish_first(version)
            assert version.adapter is not None
            shutil.rmtree(version.adapter)
            with pytest.raises(Exception, match="No such file"):
                await it.sample(tokens=5)

    with_engines(body, {}, max_lora_rank=8)


def test_an_engine_that_was_started_anew_is_given_the_adapter_again(tmp_path: Path) -> None:
    async def body(engines: Any) -> None:
        version = version_at(tmp_path, 1, rank=4)
        async with synced(engines, AdapterStrategy(rank=4)) as it:
            await it.sync.publish_first(version)
            engines[0].restart()
            completion = await it.sample(tokens=30)
            assert [span.version for span in completion.versions] == ["step-1"]
            assert mislabelled(completion, it.prompt(0), SEED, [version]) == []

    with_engines(body, {}, max_lora_rank=8)


def test_what_an_earlier_trainer_left_behind_is_unloaded(tmp_path: Path) -> None:
    async def body(engines: Any) -> None:
        versions = [version_at(tmp_path, step, rank=4) for step in (1, 2)]
        async with synced(engines, AdapterStrategy(rank=4)) as it:
            await it.sync.publish_first(versions[0])
        async with synced(engines, AdapterStrategy(rank=4)) as it:
            await it.sync.publish_first(versions[1])
            assert await loaded(it) == [[adapter_name(versions[1])]]

    with_engines(body, {}, max_lora_rank=8)


def test_an_engine_that_is_killed_while_it_loads_one_mislabels_nothing(tmp_path: Path) -> None:
    async def body(engines: Any) -> None:
        version = version_at(tmp_path, 1, rank=4)
        async with synced(engines, AdapterStrategy(rank=4)) as it:
            await record_weights(it.policy, "default")
            calls = it.running(4)
            await it.under_way(4)
            await it.sync.publish(version)
            await until(lambda: it.policy.endpoints[1].weights == "step-1")
            for number, completion in enumerate(await asyncio.gather(*calls)):
                assert mislabelled(completion, it.prompt(number), SEED, [version]) == []

    with_engines(body, {"die": "load_adapter"}, {}, max_lora_rank=8)


# --- bad input


def test_a_rank_that_the_engine_was_not_started_for_is_named(tmp_path: Path) -> None:
    async def body(engines: Any) -> None:
        async with synced(engines, AdapterStrategy(rank=32)) as it:
            with pytest.raises(WeightsNotTaken, match=r"rank 32.*--max-lora-rank 32"):
                await it.sync.publish_first(version_at(tmp_path, 1, rank=32))

    with_engines(body, {"max_lora_rank": 8}, max_lora_rank=8)


def test_an_engine_without_lora_is_named(tmp_path: Path) -> None:
    async def body(engines: Any) -> None:
        async with synced(engines, AdapterStrategy(rank=4)) as it:
            with pytest.raises(WeightsNotTaken, match="--enable-lora"):
                await it.sync.publish_first(version_at(tmp_path, 1, rank=4))

    with_engines(body, {"max_lora_rank": 0}, max_lora_rank=8)


@pytest.mark.parametrize(
    ("rank", "options", "text"),
    [
        (None, {}, "no LoRA adapter is trained"),
        (4, {"runtime_lora": False}, "VLLM_ALLOW_RUNTIME_LORA_UPDATING"),
    ],
)
def test_why_an_engine_cannot_take_adapters_is_said(
    rank: int | None, options: dict[str, Any], text: str
) -> None:
    async def body(engines: Any) -> None:
        with pytest.raises(UsageError, match=f"--weight-sync adapter: .*{text}"):
            async with synced(engines, AdapterStrategy(rank=rank), wanted="adapter"):
                pass

    with_engines(body, options, max_lora_rank=8)
