"""Many trajectories that are all in flight at one moment, each after its first turn."""

import asyncio
import gc
import json
import sys
import time
from pathlib import Path

import holdfast
import holdfast.engine.running.run
import holdfast.policy.client.replicas

TOKENS = 16


def resident_kb() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


async def main() -> None:
    url, folder, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    waiting, everyone = 0, asyncio.Event()
    peak = 0.0

    async def rollout(t: holdfast.Rollout) -> None:
        nonlocal waiting, peak
        t.add(*t.task.messages)
        await t.generate()
        waiting += 1
        if waiting == count:
            gc.collect()
            peak = resident_kb()
            everyone.set()
        await everyone.wait()
        await t.generate()

    journal = holdfast.open_journal(Path(folder) / "journal.db")
    policy = holdfast.EnginePolicy(url, "fake")
    tasks = [{"id": str(number), "prompt": "count"} for number in range(count)]
    # The tasks are the data; what is measured comes on top of them.
    before, cpu = resident_kb(), time.process_time()
    try:
        await holdfast.run(
            rollout, tasks=tasks, policy=policy, journal=journal, name="bench", seed=1,
            sampling=holdfast.Sampling(max_tokens=TOKENS),
            settings=holdfast.Settings(concurrency=count),
        )  # fmt: skip
    finally:
        await policy.aclose()
        await journal.close()
    cpu = time.process_time() - cpu
    print(json.dumps({
        "kb_each": (peak - before) / count, "peak_mb": peak / 1024, "cpu_ms": cpu / count * 1e3,
    }))  # fmt: skip


asyncio.run(main())
