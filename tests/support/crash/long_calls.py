"""A rollout whose calls take as long as the test wants, in a tool or in an environment."""

import asyncio
import os
from pathlib import Path

import holdfast
from holdfast.records.message import FunctionCall, ToolCall, user

PLACE = Path(os.environ["HOLDFAST_EFFECTS"])


async def _until_allowed(name: str) -> str:
    with (PLACE / "begun").open("a") as file:
        file.write(f"{name}\n")
    while not (PLACE / "go").exists():
        await asyncio.sleep(0.01)
    return "done"


@holdfast.tool(contract="idempotent")
async def build(name: str) -> str:
    """Builds."""
    return await _until_allowed(name)


@holdfast.tool(contract="restart")
async def move(name: str) -> str:
    """Moves."""
    return await _until_allowed(name)


class World(holdfast.Environment):
    name = "World"
    recovery = "replay"

    async def reset(self, *, seed):
        return holdfast.Observation("ready")

    async def step(self, action):
        return holdfast.Observation(await _until_allowed("step"), reward=1.0)


async def rollout(t: holdfast.Rollout):
    t.add(*t.task.messages)
    await t.generate()
    if t.task.id == "world":
        episode = await t.env(World())
        t.add(await episode.step("on"))
    else:
        call = FunctionCall(t.task.id, f'{{"name": "{t.task.id}"}}')
        await t.tool(ToolCall("c", call), build, move)
    t.add(user("and?"))
    await t.generate()
    return 1.0
