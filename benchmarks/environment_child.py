"""One side of the environment benchmark, in a process of its own."""

import asyncio
import json
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path

# Imported before the clock starts: what is measured is the work.
import holdfast.engine.running.run
import holdfast.policy.client.replicas
import holdfast.rollout.processors.agent
from holdfast.policy.policy import Request
from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.records.encoding.codec import encode
from holdfast.records.encoding.tokens import unpack_ids
from holdfast.records.message import user
from holdfast.records.step import Step

TURNS = 32
TRAJECTORIES = 128
CONCURRENCY = 128
TOKENS = 256
LONG = 1_000
WINDOWS = (100, 200, 900, 1_000)


class Ledger(holdfast.Environment):
    """A small world with a state: it answers a line of text, as text games do."""

    def __init__(self, turns: int) -> None:
        self.turns = turns
        self.done = 0

    def reset(self, *, seed: int) -> holdfast.Observation:
        self.done = 0
        return holdfast.Observation(f"Ledger {seed % 1000} is open. Say what to write down.")

    def step(self, action: str) -> holdfast.Observation:
        self.done += 1
        words = f"Line {self.done:04} holds {len(action):04} letters. What comes next?"
        return holdfast.Observation(words, reward=0.5, done=self.done == self.turns)


class AsyncLedger(holdfast.Environment):
    """The same on the event loop, without a thread of its own."""

    def __init__(self, turns: int) -> None:
        self.ledger = Ledger(turns)

    async def reset(self, *, seed: int) -> holdfast.Observation:
        return self.ledger.reset(seed=seed)

    async def step(self, action: str) -> holdfast.Observation:
        return self.ledger.step(action)


async def bare(url: str, turns: int, trajectories: int, ticks: list[float]) -> None:
    """What one would write by hand over the same client: nothing is kept."""
    renderer, sampling = ByteRenderer(), holdfast.Sampling(max_tokens=TOKENS)
    policy = holdfast.EnginePolicy(url, "fake", connections=CONCURRENCY)
    slots = asyncio.Semaphore(CONCURRENCY)

    async def trajectory(number: int) -> None:
        async with slots:
            environment = Ledger(turns)
            seen = environment.reset(seed=number)
            ids = array("i", renderer.render([user(seen.text)], ()))
            for turn in range(turns):
                _tick(ticks, turn)
                request = Request(
                    prompt=ids, sampling=sampling, seed=number * turns + turn,
                    id=f"{number}/{turn}", stop_token_ids=renderer.stop_token_ids,
                )  # fmt: skip
                answer = unpack_ids((await policy.sample(request)).ids)
                seen = environment.step(renderer.decode(answer))
                ids = ids + answer
                ids.extend(renderer.bridge(ids, answer, [user(seen.text)], ()) or ())
            _tick(ticks, turns)

    try:
        await asyncio.gather(*(trajectory(number) for number in range(trajectories)))
    finally:
        await policy.aclose()


async def durable(
    url: str,
    folder: str,
    world: Callable[[int], holdfast.Environment],
    turns: int,
    trajectories: int,
    ticks: list[float],
) -> list[int]:
    """How many bytes each turn of the first trajectory is in the journal."""

    class Ticking(holdfast.EnvironmentRolloutProcessor):
        async def rollout(self, t: holdfast.Rollout) -> None:
            episode = await t.env(self.environment(t.task))
            t.add(episode.observation)
            for turn in range(turns):
                _tick(ticks, turn)
                reply = await t.generate()
                t.add(await episode.step(reply.text))
            _tick(ticks, turns)

    journal = holdfast.open_journal(Path(folder) / "journal.db")
    policy = holdfast.EnginePolicy(url, "fake", connections=CONCURRENCY)
    try:
        _, report = await holdfast.run(
            Ticking(lambda task: world(turns)),
            tasks=[{"id": str(number), "messages": []} for number in range(trajectories)],
            policy=policy, journal=journal, name="bench", seed=1,
            sampling=holdfast.Sampling(max_tokens=TOKENS),
            settings=holdfast.Settings(concurrency=CONCURRENCY),
        )  # fmt: skip
        assert report.turns == turns * trajectories, report
        steps = [one for one in await journal.history(1) if isinstance(one, Step)][1:]
        sizes = [len(encode(one)) for one in steps]
        return [sum(sizes[turn : turn + 2]) for turn in range(0, len(sizes), 2)]
    finally:
        await policy.aclose()
        await journal.close()


def _tick(ticks: list[float], turn: int) -> None:
    if ticks is LONG_TICKS and turn in WINDOWS:
        ticks.append(time.process_time())


LONG_TICKS: list[float] = []


def main() -> None:
    mode, url, folder = sys.argv[1:]
    if mode.endswith("long"):
        ticks, shape = LONG_TICKS, (LONG, 1)
    else:
        ticks, shape = [], (TURNS, TRAJECTORIES)
    sizes: list[int] = []
    cpu = time.process_time()
    if mode.startswith("bare"):
        asyncio.run(bare(url, *shape, ticks))
    else:
        world = Ledger if "blocking" in mode else AsyncLedger
        sizes = asyncio.run(durable(url, folder, world, *shape, ticks))
    found = {"turn": (time.process_time() - cpu) / (shape[0] * shape[1])}
    if ticks:
        found |= {"early": (ticks[1] - ticks[0]) / 100, "late": (ticks[3] - ticks[2]) / 100}
    if ticks and sizes:
        found |= {"bytes_early": sum(sizes[100:200]), "bytes_late": sum(sizes[900:])}
    print(json.dumps(found))


main()
