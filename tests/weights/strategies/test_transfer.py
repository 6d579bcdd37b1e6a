"""Weights by a collective into the engines' workers: one broadcast for all, no endless wait."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the extra `train`")

from holdfast.records.errors import UsageError
from holdfast.weights.carrier import Carrier
from holdfast.weights.strategies.disk import DiskStrategy
from holdfast.weights.strategies.vllm_transfer import VllmTransfer
from support.exhaustive import points
from support.policy.clients import until
from support.policy.recorded import record_weights
from support.weights.engines import SEED, synced, with_engines
from support.weights.versions import mislabelled, version_at

TRANSFER = {"transfer": "holdfast", "worker": True}


def span_names(completion: Any) -> list[str]:
    return [span.version for span in completion.versions]


@pytest.mark.timeout(120)
def test_one_broadcast_reaches_all_replicas_under_running_requests(tmp_path: Path) -> None:
    async def body(engines: Any) -> None:
        versions = [version_at(tmp_path, step) for step in (1, 2)]
        async with synced(engines, VllmTransfer(Carrier.GLOO), DiskStrategy()) as it:
            assert any(
                "gloo transfer (world of 3; the trainer is on no GPU (--device cuda)); disk would"
                in x
                for x in it.lines
            )
            await it.sync.publish_first(versions[0])
            calls = it.running(6)
            await it.under_way(6)
            await it.sync.publish(versions[1])
            assert it.weights == ["step-2", "step-2"]
            for number, completion in enumerate(await asyncio.gather(*calls)):
                assert span_names(completion) == ["step-1", "step-2"]
                assert mislabelled(completion, it.prompt(number), SEED, versions) == []

    with_engines(body, {}, {}, **TRANSFER)


STEPS = ("update", "finish", "start")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("step", STEPS[: points(1, 3)])
@pytest.mark.parametrize("how", ["die", "fail"][: points(1, 2)])
def test_a_replica_that_breaks_the_broadcast_costs_the_others_nothing(
    tmp_path: Path, step: str, how: str
) -> None:
    async def body(engines: Any) -> None:
        versions = [version_at(tmp_path, number) for number in (1, 2)]
        async with synced(engines, VllmTransfer(Carrier.GLOO)) as it:
            await record_weights(it.policy, "default")
            calls = it.running(6)
            await it.under_way(6)
            await it.sync.publish(versions[1])
            assert it.policy.endpoints[1].weights == "step-2"
            for number, completion in enumerate(await asyncio.gather(*calls)):
                assert set(span_names(completion)) <= {"default", "step-2"}
                assert mislabelled(completion, it.prompt(number), SEED, versions) == []

    with_engines(body, {how: step}, {}, **TRANSFER)


@pytest.mark.timeout(120)
def test_a_sender_that_is_killed_is_replaced_and_nothing_was_changed(tmp_path: Path) -> None:
    async def body(engines: Any) -> None:
        versions = [version_at(tmp_path, number) for number in (1, 2)]
        way = VllmTransfer(Carrier.GLOO)
        async with synced(engines, way) as it:
            await it.sync.publish_first(versions[0])
            pid = way._sender.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await it.sync.publish(versions[1])
            await until(lambda: it.weights == ["step-2"])
            assert way._sender.pid != pid
            completion = await it.sample(tokens=5)
            assert mislabelled(completion, it.prompt(0), SEED, versions) == []

    with_engines(body, {}, **TRANSFER)


@pytest.mark.timeout(120)
def test_an_update_that_an_earlier_trainer_began_does_not_block_the_next(tmp_path: Path) -> None:
    async def body(engines: Any) -> None:
        async with synced(engines, VllmTransfer(Carrier.GLOO)) as it:
            await it.policy.endpoints[0].send("POST", "/start_weight_update")
            await it.sync.publish_first(version_at(tmp_path, 1))
            assert it.weights == ["step-1"]

    with_engines(body, {}, **TRANSFER)


# --- bad input


@pytest.mark.timeout(120)
def test_machines_that_do_not_reach_each_other_are_found_at_the_start() -> None:
    async def body(engines: Any) -> None:
        with pytest.raises(UsageError, match=r"--weight-sync gloo: .*init failed.*has to reach"):
            async with synced(engines, VllmTransfer(Carrier.GLOO, join_seconds=5)):
                pass

    with_engines(body, {"fail": "init"}, **TRANSFER)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"transfer": ""}, r"--weight-transfer-config '\{\"backend\": \"holdfast\"\}'"),
        ({"transfer": "nccl"}, "another backend"),
        ({"worker": False}, "--worker-extension-cls"),
        ({"dev_mode": False}, "VLLM_SERVER_DEV_MODE=1"),
    ],
)
def test_what_would_let_an_engine_take_a_broadcast_is_said(
    options: dict[str, Any], text: str
) -> None:
    async def body(engines: Any) -> None:
        with pytest.raises(UsageError, match=text):
            async with synced(engines, VllmTransfer(Carrier.GLOO), wanted="gloo"):
                pass

    with_engines(body, options, **TRANSFER)
