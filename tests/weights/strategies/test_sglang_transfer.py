"""SGLang's distributed update, over gloo: its requests, its sessions, its half-updated models."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the extra `train`")

from holdfast.records.errors import UsageError
from holdfast.weights.carrier import Carrier
from holdfast.weights.strategies.sglang_transfer import SglangTransfer
from support.exhaustive import points
from support.policy.clients import until
from support.policy.recorded import record_weights
from support.weights.engines import SEED, synced, with_engines
from support.weights.versions import mislabelled, version_at


@pytest.mark.timeout(180)
def test_one_broadcast_reaches_old_and_new_engines_under_running_requests(tmp_path: Path) -> None:
    """The old one knows nothing of sessions; in the new one a trainer that died left one open."""

    async def body(engines: Any) -> None:
        versions = [version_at(tmp_path, step) for step in (1, 2)]
        async with synced(engines, SglangTransfer(Carrier.GLOO)) as it:
            assert any("SGLang" in x and "gloo transfer (world of 3)" in x for x in it.lines)
            await it.policy.endpoints[0].send("POST", "/begin_weight_update", {})
            await it.sync.publish_first(versions[0])
            calls = it.running(4)
            await it.under_way(4)
            await it.sync.publish(versions[1])
            assert it.weights == ["step-2", "step-2"]
            for number, completion in enumerate(await asyncio.gather(*calls)):
                names = [span.version for span in completion.versions]
                assert names[-1] == "step-2"
                assert set(names) <= {"step-1", "step-2"}
                assert mislabelled(completion, it.prompt(number), SEED, versions) == []

    with_engines(body, {}, {"sessions": False}, dialect="sglang")


@pytest.mark.timeout(180)
@pytest.mark.parametrize("step", ("update", "finish", "start")[: points(1, 3)])
def test_a_replica_that_is_half_updated_gets_no_calls_until_it_was_sent_all_of_it(
    tmp_path: Path, step: str
) -> None:
    async def body(engines: Any) -> None:
        versions = [version_at(tmp_path, number) for number in (1, 2)]
        async with synced(engines, SglangTransfer(Carrier.GLOO)) as it:
            await record_weights(it.policy, "default")
            calls = it.running(4)
            await it.under_way(4)
            await it.sync.publish(versions[1])
            await until(lambda: it.weights == ["step-2", "step-2"])
            calls += it.running(4, tokens=5)
            for number, completion in enumerate(await asyncio.gather(*calls)):
                assert mislabelled(completion, it.prompt(number % 4), SEED, versions) == []

    with_engines(body, {"fail": step, "fail_times": 1}, {}, dialect="sglang")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("carrier", "options", "text"),
    [
        (Carrier.GLOO, {"device": "cuda"}, "it is on no CPU"),
        (Carrier.NCCL, {"device": "cuda"}, "--device cuda"),
    ],
)
def test_what_would_let_it_work_is_said(
    carrier: Carrier, options: dict[str, Any], text: str
) -> None:
    async def body(engines: Any) -> None:
        with pytest.raises(UsageError, match=rf"--weight-sync {carrier}: .*{text}"):
            async with synced(engines, SglangTransfer(carrier), wanted=carrier):
                pass

    with_engines(body, options, dialect="sglang")


@pytest.mark.timeout(180)
def test_engines_that_cannot_join_are_found_at_the_start() -> None:
    async def body(engines: Any) -> None:
        with pytest.raises(UsageError, match=r"--weight-sync gloo: .*init failed.*has to reach"):
            async with synced(engines, SglangTransfer(Carrier.GLOO, join_seconds=5)):
                pass

    with_engines(body, {"fail": "init"}, dialect="sglang")
