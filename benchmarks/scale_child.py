"""Many trajectories that are all in flight at one moment: each after its first turn, or with the
word `first` while it waits for its first reply."""

import asyncio
import gc
import json
import os
import sys
import time
from pathlib import Path

import holdfast
import holdfast.engine.running.run
import holdfast.policy.client.replicas

TOKENS = 16
SETTLE_SECONDS = 5.0


def resident_kb() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


async def main() -> None:
    url, folder, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    waits_for_first = sys.argv[4:] == ["first"]
    waiting, everyone = 0, asyncio.Event()
    peak = 0.0

    async def rollout(t: holdfast.Rollout) -> None:
        nonlocal waiting, peak
        t.add(*t.task.messages)
        if waits_for_first:
            waiting += 1
            if waiting == count:
                everyone.set()
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

    async def tell_and_end() -> None:
        await everyone.wait()
        await asyncio.sleep(SETTLE_SECONDS)
        gc.collect()
        peak = resident_kb()
        each = {"kb_each": (peak - before) / count, "peak_mb": peak / 1024}
        print(json.dumps({**each, "cpu_ms": (time.process_time() - cpu) / count * 1e3}), flush=True)
        os._exit(0)  # Nobody answers the others.

    telling = asyncio.create_task(tell_and_end()) if waits_for_first else None
    try:
        await holdfast.run(
            rollout, tasks=tasks, policy=policy, journal=journal, name="bench", seed=1,
            sampling=holdfast.Sampling(max_tokens=TOKENS),
            settings=holdfast.Settings(concurrency=count),
        )  # fmt: skip
    finally:
        await policy.aclose()
        await journal.close()
    assert telling is None, "nobody is answered, so the run does not end"
    cpu = time.process_time() - cpu
    print(json.dumps({
        "kb_each": (peak - before) / count, "peak_mb": peak / 1024, "cpu_ms": cpu / count * 1e3,
    }))  # fmt: skip


asyncio.run(main())
