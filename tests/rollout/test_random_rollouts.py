"""Rollouts made at random, killed after each of their records: nothing is asked twice, nothing
moves, and the end is the same. A seed makes the rollout; how its parts overtake each other is
another matter each time."""

import asyncio
import random

import pytest

import holdfast
from holdfast.records.encoding.tokens import unpack_ids
from holdfast.records.history import History, stream_of
from holdfast.records.samples.sample import samples_of
from holdfast.rollout.episodes.environment import Environment, Observation
from support.records import finished
from support.rollout.kills import Ended, check_every_kill, ended
from support.rollout.stage import Oracle, call

MOST_RECORDS = 60
ANYWHERE = ("value", "sub", "own call")
"""What may be done in a tool, an environment or a remembered function, too."""
IN_CONVERSATION = ("generate", "generate", "add", "rewrite", "call", "gather", "together", "world")


async def dawdle() -> None:
    for _ in range(random.randrange(4)):
        await asyncio.sleep(0)


class Dawdler(Oracle):
    async def sample(self, request):
        await dawdle()
        return await super().sample(request)


class Part:
    """One thing that a rollout does, and those that are done inside it."""

    def __init__(self, made: random.Random, depth: int, *, free: bool, in_world: bool):
        kinds = ANYWHERE + ("branch",) * (not in_world) + IN_CONVERSATION * free
        self.kind = made.choice(kinds if depth else ("value",) + ("generate", "call") * free)
        self.number = made.randrange(1, 4)
        self.level = made.choice(["replay", "snapshot"])
        world = in_world or self.kind == "world"
        branches = self.number if self.kind == "branch" else 1
        inside = self.kind in ("sub", "branch")
        self.inner = [
            parts(made, depth - 1, free=inside, in_world=world and not inside)
            for _ in range(branches if depth and (inside or made.random() < 0.5) else 0)
        ]


def parts(made: random.Random, depth: int, *, free: bool, in_world: bool = False) -> list[Part]:
    return [Part(made, depth, free=free, in_world=in_world) for _ in range(made.randrange(1, 4))]


class World(Environment):
    def __init__(self, level: str, inner):
        self.recovery = level
        self.inner = inner
        self.done = 0

    async def reset(self, *, seed: int) -> str:
        self.done = 0
        return "here"

    async def step(self, action: str) -> Observation:
        await dawdle()
        self.done += 1
        return Observation(f"{action} {self.done} {await self.inner()}", 1.0)

    def snapshot(self) -> bytes:
        return bytes([self.done])

    def restore(self, state: bytes) -> None:
        self.done = state[0]


def rollout_of(made: list[Part], name: str = "p"):
    async def rollout(t):
        results = []
        for at, part in enumerate(made):
            await dawdle()
            results.append(await do(t, part, f"{name}{at}"))
        return results

    return rollout


async def do(t, part: Part, name: str) -> object:
    async def inside() -> str:
        await dawdle()
        return name + "".join([str(await rollout_of(item, name)(t)) for item in part.inner])

    match part.kind:
        case "value":
            return await t.value(inside, name=name)
        case "call" | "own call":
            return await call_one(t, inside, name if part.kind == "call" else "")
        case "gather" | "together":
            return await call_many(t, part, name)
        case "world":
            return await live_in(t, World(part.level, inside))
        case "sub" | "branch":
            inner = [rollout_of(item, f"{name}b{at}") for at, item in enumerate(part.inner)]
            return await (t.sub(inner[0]) if part.kind == "sub" else t.branch(*inner))
        case _:
            return await say(t, part, name)


async def say(t, part: Part, name: str) -> str:
    if part.kind == "generate":
        return (await t.generate(max_tokens=20)).text
    if part.kind == "add":
        t.add(name)
    else:
        del t.messages[1:2]
    return ""


async def call_one(t, inside, name: str) -> str:
    @holdfast.tool(contract="idempotent")
    async def work() -> str:
        return await inside()

    return (await t.tool(call("work", call_id=name), work)).content


async def call_many(t, part: Part, name: str) -> list[str]:
    @holdfast.tool(contract="idempotent")
    async def wait(number: int) -> str:
        await dawdle()
        return f"{number}"

    calls = [
        call("wait", f'{{"number": {number}}}', call_id=f"{name}{number}")
        for number in range(part.number)
    ]
    if part.kind == "gather":
        replies = await asyncio.gather(*(t.tool(item, wait) for item in calls))
    else:
        replies = await t.tools(calls, wait)
    return [reply.content for reply in replies]


async def live_in(t, world: World) -> float:
    episode = await t.env(world)
    t.add(episode.observation)
    for _ in range(2):
        t.add(await episode.step("on"))
        await t.generate(max_tokens=20)
    return episode.total_reward


@pytest.mark.parametrize("seed", range(40))
def test_a_rollout_made_at_random_survives_every_kill(seed):
    made = parts(random.Random(seed), 3, free=True)

    async def rollout(t):
        t.add("begin")
        result = await rollout_of(made)(t)
        await t.generate(max_tokens=20)
        return result, t.spent.turns, t.spent.tokens, [message.text for message in t.messages]

    async def check():
        whole = await ended(rollout)
        check_tokens(whole)
        if len(whole.records) <= MOST_RECORDS:
            await check_every_kill(rollout, oracle=Dawdler)

    asyncio.run(asyncio.wait_for(check(), 60))


def check_tokens(whole: Ended) -> None:
    """What is recorded is what was asked and sampled; each sampled token is trained once."""
    history = History([*whole.records, finished()])
    samples = samples_of(history, task="t", group="g", sample=0)
    assert len(history.generations) == len(whole.requests)
    for request in whole.requests:
        path = request.id.rpartition("/")[2]
        sampled = unpack_ids(history.steps[path].ids)
        stream = stream_of(history, path)
        assert stream == request.prompt + sampled, path
        assert any(sample.token_ids[: len(stream)] == stream.tolist() for sample in samples), path
    assert sum(sum(sample.loss_mask) for sample in samples) == history.sampled_tokens
