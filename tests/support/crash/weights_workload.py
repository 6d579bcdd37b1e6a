"""A trainer that publishes two versions to fake engines, and may be killed at any step of it.

python weights_workload.py WAY FOLDER URL…
"""

import asyncio
import os
import sys
from pathlib import Path

from holdfast.journal import open_journal
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.testing import crash_points
from holdfast.weights.carrier import Carrier
from holdfast.weights.records import JournalRecords
from holdfast.weights.replica import resume_paused
from holdfast.weights.strategies.adapter import AdapterStrategy
from holdfast.weights.strategies.disk import DiskStrategy
from holdfast.weights.strategies.sglang_transfer import SglangTransfer
from holdfast.weights.strategies.vllm_transfer import VllmSharedMemory, VllmTransfer
from holdfast.weights.sync import WeightSync
from support.records import make_tasks, spec
from support.weights.versions import version_at

WAYS = {
    "disk": DiskStrategy,
    "shm": lambda: DiskStrategy(stage=Path(sys.argv[2]) / "stage"),
    "adapter": lambda: AdapterStrategy(rank=4),
    "gloo": lambda: VllmTransfer(Carrier.GLOO),
    "ipc": VllmSharedMemory,
    "sglang": lambda: SglangTransfer(Carrier.GLOO),
}


async def main(way: str, folder: Path, urls: list[str]) -> None:
    await resume_paused(urls, api_key=None, report=print)
    policy = EnginePolicy(urls, "fake", patience=60.0, is_trained=True)
    await policy.check()
    journal = open_journal(str(folder / "journal.db"))
    run = await journal.find_run("run") or await journal.create_run(spec("run"), make_tasks("a"))
    sync = WeightSync(policy, [WAYS[way]()], report=print)
    await sync.start()
    sync.record_in(JournalRecords(journal, run))
    for step in (1, 2):
        version = version_at(folder, step, rank=4 if way == "adapter" else 0)
        await (sync.publish_first if step == 1 else sync.publish)(version)
    await sync.aclose()
    await policy.aclose()
    await journal.close()


if plan := os.environ.get("HOLDFAST_CRASH"):
    crash_points.arm(plan)
asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
