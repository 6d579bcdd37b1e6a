"""The rollout of the test that kills everything at random: files, processes and effects outside."""

import json
import os
from pathlib import Path

import holdfast
from holdfast.records.message import FunctionCall

TURNS = int(os.environ.get("KILLS_TURNS", "10"))
OUTSIDE = Path(os.environ["KILLS_OUTSIDE"])


@holdfast.tool(contract="at_most_once")
def pay(order: str) -> str:
    """Pays an order. Each order may be paid only once."""
    with OUTSIDE.open("a") as file:
        file.write(f"{order}\n")
    return "paid"


async def solve(t: holdfast.Rollout) -> float:
    episode = await t.env(holdfast.WorldEnvironment("docker:busybox"))
    t.add(*t.task.messages)
    for turn in range(TURNS):
        await t.generate(max_tokens=8)
        seen = await episode.step(
            f"mkdir -p /d/{turn}; echo {turn} >> /log; (sleep 600 &); cp /log /d/{turn}/log; "
            "cat /log; find /d -type f | sort | md5sum"
        )
        t.add(holdfast.user(seen.text))
        if t.task.id.startswith("pay"):
            order = FunctionCall("pay", json.dumps({"order": f"{t.key}.{turn}"}))
            await t.tools([holdfast.ToolCall(f"call_{turn}", order)], pay)
    return float(turn)
