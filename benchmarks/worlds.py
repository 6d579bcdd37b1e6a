"""Worlds on a real container engine: a command, a snapshot, and coming back, beside the bare API.

Needs `HOLDFAST_WORLDS`, the address of an engine with the image busybox (`make worlds` starts one).
"""

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import cast

from result import Result

from holdfast.clock import SystemClock
from holdfast.engine.open_run import open_run
from holdfast.engine.running.engine import Engine
from holdfast.engine.settings import Settings
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.policy.policy import Policy
from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.records.message import user
from holdfast.records.run import RunSpec
from holdfast.records.sampling import Sampling
from holdfast.records.task import Task, tasks_digest
from holdfast.rollout.processors.processor import as_processor
from holdfast.worlds.contract.spec import parse_spec
from holdfast.worlds.contract.world import WorldLabel
from holdfast.worlds.docker.container import Container
from holdfast.worlds.docker.provider import ContainerProvider
from holdfast.worlds.running.environment import WorldEnvironment

SPEC = parse_spec("docker:busybox")
ROUNDS = 30
TURNS = 50
COMMAND = "echo x >> /f; wc -l < /f"


class Silent:
    """A policy that is never asked."""

    model = "none"
    seconds_down = 0.0

    async def ready(self) -> None: ...


def measure() -> Iterator[Result]:
    address = os.environ.get("HOLDFAST_WORLDS", "")
    if not address:
        print("worlds: HOLDFAST_WORLDS names no engine; make worlds starts one")
        return
    os.environ["DOCKER_HOST"] = address
    figures: dict[str, list[float]] = {}
    asyncio.run(_turns(address, figures))
    middle = {name: statistics.median(times) for name, times in figures.items()}
    bare, durable = middle["exec"], middle["step"]
    yield Result(
        "a recorded command / the same by the API alone", durable / bare, "×", "≤ 1.3",
        detail=f"{durable * 1000:.0f} and {bare * 1000:.0f} ms",
    )  # fmt: skip
    yield Result(
        "a snapshot with its ledger / the commit alone", middle["snapshot"] / middle["commit"], "×",
        "≤ 1.2", detail=f"{middle['snapshot'] * 1000:.0f}, {middle['commit'] * 1000:.0f} ms",
    )  # fmt: skip
    yield Result(
        f"coming back to turn {TURNS} from a snapshot / a container's start",
        middle["back"] / middle["create"], "×", "≤ 3",
        detail=f"{middle['back'] * 1000:.0f} and {middle['create'] * 1000:.0f} ms",
    )  # fmt: skip


async def _turns(address: str, figures: dict[str, list[float]]) -> None:
    """Lets the recorded and the bare side take turns in one process."""
    provider = ContainerProvider("docker", address)
    await provider.prepare(SPEC)
    label = WorldLabel(world=f"bench{time.time_ns()}", journal="bench")
    bare = await provider.create(SPEC, label)

    async def timed(name: str, call: Callable[[], Awaitable[object]]) -> None:
        begun = time.perf_counter()
        await call()
        figures.setdefault(name, []).append(time.perf_counter() - begun)

    async def rollout(t) -> None:  # type: ignore[no-untyped-def]
        episode = await t.env(WorldEnvironment(SPEC, snapshot_every=1))
        environment, live = episode.environment, episode._live
        for number in range(ROUNDS):
            await timed("exec", lambda: bare.exec(COMMAND))
            await timed("step", lambda: episode.step(COMMAND))
            if number % 5 == 4:
                name = f"bench{time.time_ns()}"
                await timed("commit", partial(bare.snapshot, name))
                await provider.discard(f"holdfast/snapshot:{name}")
                await timed("snapshot", episode.keep)
        for _ in range(TURNS - ROUNDS):
            await episode.step(COMMAND)
        await episode.keep()
        for _ in range(5):
            other = WorldLabel(world=f"bench{time.time_ns()}", journal="bench")
            made: list[Container] = []
            await timed("create", partial(_make, provider, other, made))
            await made[0].destroy()
            await environment.world.destroy()
            live._is_live = False
            await timed("back", live.catch_up)
        assert (await episode.step("wc -l < /f")).text.strip() == str(TURNS)

    try:
        await _run(rollout)
    finally:
        await bare.destroy()
        await provider.close()


async def _make(provider: ContainerProvider, label: WorldLabel, made: list[Container]) -> None:
    made.append(await provider.create(SPEC, label))


async def _run(rollout: Callable[..., Awaitable[None]]) -> None:
    tasks = [Task(id="a", messages=(user("go"),))]
    spec = RunSpec(
        name="bench", samples=1, model="none", sampling=Sampling(), seed=1, rollout="bench",
        scorer="", renderer="bytes", tasks=tasks_digest(tasks),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        journal = SqliteJournal(Path(folder) / "journal.db")
        try:
            run = await open_run(journal, spec, tasks)
            ending = await Engine(
                run=run, journal=journal, policy=cast("Policy", Silent()), renderer=ByteRenderer(),
                processor=as_processor(rollout), settings=Settings(max_retry=0),
                clock=SystemClock(),
            ).work()  # fmt: skip
            assert ending.fatal is None, ending.fatal
            rows = await journal.trajectories(run)
            assert rows[0].status.name == "COMPLETED", await journal.history(rows[0].id)
        finally:
            await journal.close()
