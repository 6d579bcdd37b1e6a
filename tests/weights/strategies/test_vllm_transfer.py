"""vLLM's weight transfer from GPU to GPU and by shared memory, with our backend and its own.

There is no GPU here: what would go by NCCL goes over gloo, with the requests of NCCL.
"""

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the extra `train`")

from holdfast.policy.client.endpoint import Endpoint
from holdfast.policy.client.probe import UNREACHABLE
from holdfast.records.errors import UsageError
from holdfast.weights.carrier import Carrier, Device, this_device
from holdfast.weights.replica import Replica
from holdfast.weights.strategies import vllm_transfer
from holdfast.weights.strategies.disk import DiskStrategy
from holdfast.weights.strategies.vllm_transfer import (
    VllmOwnTransfer,
    VllmSharedMemory,
    VllmTransfer,
)
from support.policy.clients import until
from support.weights.engines import SEED, synced, with_engines
from support.weights.versions import mislabelled, version_at

GPU = Device("cuda", "GPU-0", this_device().machine)
"""The trainer's; torch calls it cpu."""
OURS = {"transfer": "holdfast", "worker": True}
OWN = {"transfer": "nccl", "device": "cuda"}


@pytest.fixture
def _has_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_transfer, "find_spec", lambda name: name)


class OverGloo:
    async def _open_options(self, replicas: Sequence[Replica]) -> dict[str, object]:
        options = await super()._open_options(replicas)  # type: ignore[misc]
        return {**options, "members": "holdfast", "carrier": "gloo"}


class NcclOverGloo(OverGloo, VllmTransfer):
    pass


class OwnOverGloo(OverGloo, VllmOwnTransfer):
    pass


def span_names(completion: Any) -> list[str]:
    return [span.version for span in completion.versions]


def test_an_engine_with_our_workers_is_asked_nothing_that_its_log_calls_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused: list[str] = []
    send = Endpoint.send

    async def seen(endpoint: Endpoint, *arguments: Any, **named: Any) -> bytes:
        try:
            return await send(endpoint, *arguments, **named)
        except UNREACHABLE as error:
            refused.append(f"{arguments}: {error}")
            raise

    monkeypatch.setattr(Endpoint, "send", seen)

    async def body(engines: Any) -> None:
        async with synced(engines, VllmSharedMemory(), DiskStrategy(is_tied=True)) as it:
            (line,) = [line for line in it.lines if line.startswith("weights: ")]
            assert "ipc transfer" in line
            assert "disk would work, too" in line

    with_engines(body, OURS)
    routes = ("/init_weight_transfer_engine", "/collective_rpc")
    assert [line for line in refused if any(route in line for route in routes)] == []


# --- from GPU to GPU


@pytest.mark.timeout(180)
def test_engines_on_gpus_get_one_broadcast_and_the_line_says_so(tmp_path: Path) -> None:
    async def body(engines: Any) -> None:
        ways = (
            VllmSharedMemory(trainer=GPU),
            NcclOverGloo(Carrier.NCCL, trainer=GPU),
            DiskStrategy(),
        )
        async with synced(engines, *ways) as it:
            (line,) = [line for line in it.lines if line.startswith("weights: ")]
            assert ": nccl transfer (world of 3); disk would work, too: --weight-sync disk" in line
            version = version_at(tmp_path, 1)
            await it.sync.publish_first(version)
            assert it.weights == ["step-1", "step-1"]
            completion = await it.sample(tokens=5)
            assert mislabelled(completion, it.prompt(0), SEED, [version]) == []

    with_engines(body, *({**OURS, "device": "cuda", "gpu": f"GPU-{n}"} for n in (1, 2)))


@pytest.mark.timeout(180)
@pytest.mark.usefixtures("_has_vllm")
def test_vllms_own_backend_is_half_loaded_by_what_breaks_and_is_started_anew(
    tmp_path: Path,
) -> None:
    """Both replicas were in the group: neither can leave it."""
    restarted: list[str] = []

    async def body(engines: Any) -> None:
        async def restart(endpoint: Any) -> None:
            number = [e.url for e in it.policy.endpoints].index(endpoint.url)
            restarted.append(endpoint.url)
            await asyncio.to_thread(engines[number].kill)
            await asyncio.to_thread(engines[number].start)

        way = OwnOverGloo(trainer=GPU)
        async with synced(engines, way, restart=restart) as it:
            assert any("nccl transfer (world of 3, by vLLM's own" in line for line in it.lines)
            versions = [version_at(tmp_path, number) for number in (1, 2)]
            await it.sync.publish_first(versions[0])
            calls = it.running(4)
            await it.under_way(4)
            assert way._sender.pid is not None
            os.kill(way._sender.pid, signal.SIGKILL)
            await it.sync.publish(versions[1])
            await until(lambda: it.weights == ["step-2", "step-2"])
            assert sorted(restarted) == sorted(each.url for each in engines)
            for number, completion in enumerate(await asyncio.gather(*calls)):
                assert set(span_names(completion)) <= {"step-1", "step-2"}
                assert mislabelled(completion, it.prompt(number), SEED, versions) == []

    with_engines(body, OWN, OWN)


@pytest.mark.timeout(180)
@pytest.mark.usefixtures("_has_vllm")
def test_vllms_own_backend_in_the_middle_of_an_update_has_to_be_started_anew(
    tmp_path: Path,
) -> None:
    async def body(engines: Any) -> None:
        async with synced(engines, OwnOverGloo(trainer=GPU)) as it:
            await it.policy.endpoints[0].send("POST", "/start_weight_update")
            with pytest.raises(vllm_transfer.WeightsNotTaken, match="start it anew"):
                async with asyncio.timeout(60):
                    await it.sync.publish_first(version_at(tmp_path, 1))

    with_engines(body, OWN)


# --- shared memory


@pytest.mark.timeout(180)
def test_an_engine_on_this_machine_reads_the_trainers_memory_under_running_requests(
    tmp_path: Path,
) -> None:
    async def body(engines: Any) -> None:
        way = VllmSharedMemory()
        versions = [version_at(tmp_path, number) for number in (1, 2, 3)]
        async with synced(engines, way, VllmTransfer(Carrier.GLOO)) as it:
            assert any("ipc transfer (it shares the memory of this machine" in x for x in it.lines)
            await it.sync.publish_first(versions[0])
            calls = it.running(4)
            await it.under_way(4)
            await it.sync.publish(versions[1])
            for number, completion in enumerate(await asyncio.gather(*calls)):
                assert span_names(completion) == ["step-1", "step-2"]
                assert mislabelled(completion, it.prompt(number), SEED, versions) == []
            pid = way._sender.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await it.sync.publish(versions[2])
            await until(lambda: it.weights == ["step-3"])
            assert way._sender.pid != pid, "another one sends"

    with_engines(body, OURS)


@pytest.mark.timeout(180)
def test_memory_that_cannot_be_shared_is_found_at_the_start() -> None:
    async def body(engines: Any) -> None:
        with pytest.raises(UsageError, match=r"--weight-sync ipc: .*init failed.*one container"):
            async with synced(engines, VllmSharedMemory()):
                pass

    with_engines(body, {**OURS, "fail": "init"})


# --- what cannot work


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("way", "options", "text"),
    [
        (VllmTransfer(Carrier.NCCL), {**OURS, "device": "cuda"}, "--device cuda"),
        (VllmTransfer(Carrier.NCCL, trainer=GPU), OURS, "it is on no GPU"),
        (
            VllmTransfer(Carrier.NCCL, trainer=GPU),
            {**OURS, "device": "cuda", "gpu": "GPU-0"},
            "shares the trainer's GPU: --weight-sync ipc",
        ),
        (VllmOwnTransfer(trainer=GPU), OWN, "install vllm beside the trainer"),
        (VllmOwnTransfer(trainer=GPU), OURS, "was not started with"),
        (VllmOwnTransfer(), OWN, "--device cuda"),
        (VllmSharedMemory(trainer=GPU), OURS, "shares no GPU"),
        (VllmSharedMemory(), {"transfer": "nccl"}, "another backend"),
    ],
)
def test_what_would_let_it_work_is_said(way: Any, options: dict[str, Any], text: str) -> None:
    async def body(engines: Any) -> None:
        with pytest.raises(UsageError, match=rf"--weight-sync {way.name}: .*{text}"):
            async with synced(engines, way, DiskStrategy(), wanted=way.name):
                pass

    with_engines(body, options)
