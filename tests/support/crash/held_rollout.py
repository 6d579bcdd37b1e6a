"""The short rollout, whose second epoch stops before its last turn while there is a file `hold`."""

import asyncio
from pathlib import Path

import holdfast


async def solve(t: holdfast.Rollout) -> None:
    t.add(*t.task.messages)
    await t.generate(max_tokens=8)
    while "@2" in t.task.id and Path("hold").exists():
        await asyncio.sleep(0.01)
    t.add(holdfast.user("And now?"))
    await t.generate(max_tokens=8)


def score(trajectory: holdfast.TrajectoryView) -> float:
    return sum(map(ord, trajectory.reply)) % 7 / 6
