"""A rollout whose at-most-once tool kills the driver in the middle of its first call."""

import os
import signal
from pathlib import Path

import holdfast

PLACE = Path(os.environ["HOLDFAST_EFFECTS"])


@holdfast.tool
async def pay(idempotency_key: str) -> str:
    """Pays."""
    with (PLACE / "paid").open("a") as file:
        file.write(f"{idempotency_key}\n")
    if not (PLACE / "killed").exists():
        (PLACE / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "paid"


async def rollout(t: holdfast.Rollout) -> float:
    t.add(*t.task.messages)
    await t.generate()
    reply = await t.tool(pay.call(), pay)
    t.add(reply.content)
    await t.generate()
    return float(reply.ok)
