"""A trainer is killed at every step of an update, while requests run: the next one finds engines
that are paused, half-way or whole, and no token is labelled with weights that did not sample it."""

import asyncio
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from holdfast.journal import open_journal
from holdfast.policy.dialects.dialect import UNFINISHED
from holdfast.records.samples.replica_weights import newest_by_replica
from support.crash.killable_run import SIGKILLED
from support.exhaustive import points
from support.paths import TESTS
from support.weights.engines import SEED, Synced, engine, policy_of
from support.weights.versions import mislabelled, version_at

WORKLOAD = TESTS / "support" / "crash" / "weights_workload.py"
ALWAYS = ("weights.paused:2", "weights.sent:2", "weights.resumed:2")
RECORDS = ("weights.noted:2", "weights.checked:1", "before:3", "after:3")
DISK = (*ALWAYS, *RECORDS, "weights.prepared:2", "weights.reloaded:2", "weights.switched:1")
PLANS = {
    "disk": (*DISK, "weights.paused:1", "weights.sent:1"),
    "shm": ("weights.staged:2",),
    "adapter": ("weights.sent:2", "weights.prepared:2", "weights.switched:1", "weights.checked:1"),
    "gloo": ("weights.received:2", "weights.begun:2", *ALWAYS),
    "ipc": ("weights.received:2", "weights.begun:2", *ALWAYS),
    "sglang": ("weights.received:2", "weights.begun:2", *ALWAYS),
}
CASES = [
    pytest.param(way, plan, id=f"{way}-{plan}")
    for way, plans in PLANS.items()
    for plan in plans[: points({"disk": 3, "ipc": 0, "sglang": 0}.get(way, 1), len(plans))]
]


def train(way: str, folder: Path, urls: list[str], crash: str = "") -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    environment |= {"HOLDFAST_CRASH": crash} if crash else {}
    command = [sys.executable, str(WORKLOAD), way, str(folder), *urls]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


async def checked(folder: Path, urls: list[str]) -> set[str]:
    """The versions that the engines have by their newest records, each checked."""
    journal = open_journal(str(folder / "journal.db"))
    try:
        run = await journal.find_run("run")
        assert run is not None
        newest = newest_by_replica(await journal.replica_weights(run))
    finally:
        await journal.close()
    assert set(newest) == set(urls)
    assert all(record.is_checked for record in newest.values()), newest
    return {record.version for record in newest.values()}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("way", "plan"), CASES)
def test_a_trainer_that_is_killed_in_an_update_mislabels_nothing(
    tmp_path: Path, way: str, plan: str
) -> None:
    if way in ("gloo", "ipc", "sglang") and find_spec("torch") is None:
        pytest.skip("the extra `train`")
    offers = {"max_lora_rank": 8, "transfer": "holdfast", "worker": True}
    rank = 4 if way == "adapter" else 0
    versions = [version_at(tmp_path, step, rank=rank) for step in (1, 2)]

    async def body(urls: list[str]) -> None:
        async with policy_of(urls) as policy:
            it = Synced(policy, None, [])  # type: ignore[arg-type]
            calls = it.running(4, tokens=400)
            await it.under_way(4)
            killed = await asyncio.to_thread(train, way, tmp_path, urls, plan)
            assert killed.returncode == SIGKILLED, killed.stderr
            calls += it.running(4, tokens=100)
            again = await asyncio.to_thread(train, way, tmp_path, urls)
            assert again.returncode == 0, again.stderr
            calls += it.running(4, tokens=20)
            for number, completion in enumerate(await asyncio.gather(*calls)):
                names = {span.version for span in completion.versions}
                assert names <= {"default", "step-1", "step-2", UNFINISHED}
                assert mislabelled(completion, it.prompt(number % 4), SEED, versions) == []
            listed = [model.id for model in await policy.endpoints[0].models()]
            assert await checked(tmp_path, urls) == {"step-2"}
            assert len(listed) == (2 if way == "adapter" else 1), "nothing is left behind"

    dialect = "sglang" if way == "sglang" else "vllm-scale-out"
    with engine(dialect, **offers) as first, engine(dialect, **offers) as other:
        asyncio.run(body([first.url, other.url]))
