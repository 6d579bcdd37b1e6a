"""The crash suite's rollout: several turns, tools of all three contracts, trouble on the way.

What it does depends on the task's id: tasks named `pay…` use the at-most-once tool, `build…` the
restart one, `long…` run into their turn limit, `bug…` have one sample whose code is broken, and
`read…` have a tool that asks the policy itself, and a conversation in the background.
Every tool leaves a line in the file that HOLDFAST_EFFECTS names: the world that must not see an
effect twice.
"""

import asyncio
import os

import holdfast


def effect(tool: str, key: str) -> None:
    with open(os.environ["HOLDFAST_EFFECTS"], "a") as world:
        world.write(f"{tool} {key}\n")


@holdfast.tool(contract="idempotent")
async def look_up(word: str, idempotency_key: str) -> str:
    """Reads something."""
    effect("look_up", idempotency_key)
    return f"{word} means {len(word)}"


@holdfast.tool(contract="at_most_once")
async def pay(amount: int, idempotency_key: str) -> str:
    """Moves money."""
    effect("pay", idempotency_key)
    return f"paid {amount}"


@holdfast.tool(contract="restart")
async def build(part: str, idempotency_key: str) -> str:
    """Changes a world that does not survive a crash."""
    effect("build", idempotency_key)
    return f"built {part}"


async def solve(t: holdfast.Rollout) -> None:
    if not t.task.id.startswith("read"):
        return await _turns(t)
    async with asyncio.TaskGroup() as group:
        group.create_task(t.sub(_aside("beside")))
        await _turns(t)
        await t.tool(consulting(t).call(word="kelp"), consulting(t))
    return None


def consulting(t: holdfast.Rollout) -> holdfast.Tool:
    @holdfast.tool(contract="idempotent")
    async def consult(word: str) -> str:
        """Asks in a conversation of its own."""
        size = await t.value(lambda: len(word), name="inside")
        await t.sub(_aside(f"inside, {size} letters"))
        return f"asked about {word}"

    return consult


async def _turns(t: holdfast.Rollout) -> None:
    t.add(*t.task.messages)
    for turn in range(3):
        reply = await t.generate(max_tokens=24)
        size = await t.value(lambda messages=reply.text: len(messages), name="size")
        result = await t.tool(*_call(t.task.id, reply.text, size))
        t.add(f"turn {turn}: {result.content}")
        if t.task.id.startswith("bug") and turn == 1 and _sample(t) == 1:
            raise KeyError(f"a bug in the rollout, after turn {turn}")
    if t.task.id.startswith("long"):
        t.truncate("max_turns")
    await t.branch(_aside("first"), _aside("second"))


def _aside(name: str):
    async def aside(t: holdfast.Rollout) -> None:
        t.add(f"aside: {name}")
        await t.generate(max_tokens=8)

    return aside


def _call(task: str, text: str, size: int):
    if task.startswith("pay"):
        return pay.call(amount=size), pay
    if task.startswith("build"):
        return build.call(part=text[:4]), build
    return look_up.call(word=text[:6]), look_up


def _sample(t: holdfast.Rollout) -> int:
    return t.key.sample


def score(trajectory: holdfast.TrajectoryView) -> holdfast.Score:
    letters = sum(len(turn.step.message.text) for turn in trajectory.turns)
    return holdfast.Score(letters / 100, metrics={"letters": letters})
