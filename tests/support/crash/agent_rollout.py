"""A black-box agent behind the gateway, and a scorer that never answers for one task."""

import asyncio
import sys
from pathlib import Path

import holdfast

SILENT = "arithmetic-7-2"
solve = holdfast.BlackBoxRolloutProcessor(
    [sys.executable, str(Path(__file__).with_name("short_agent.py"))]
)


async def score(trajectory: holdfast.TrajectoryView) -> float:
    if trajectory.task.id.split("@")[0] == SILENT:
        await asyncio.Event().wait()
    return sum(map(ord, trajectory.reply)) % 7 / 6
