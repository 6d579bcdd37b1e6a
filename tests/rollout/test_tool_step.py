"""A call is recorded when it begins. One that waits for a thread, a process or its turn is not, and
nobody takes it for interrupted."""

import asyncio
import json
import threading
from pathlib import Path

import pytest

import holdfast
from holdfast.records.errors import RunStopped
from holdfast.records.message import ToolCall
from holdfast.records.step import INTERRUPTED_CALL, ToolIntent
from holdfast.rollout.threads import pool as threads
from holdfast.rollout.tools.isolated import pool
from holdfast.rollout.tools.tool import tool
from holdfast.testing import ManualClock
from support.rollout import dangerous_tools as tools
from support.rollout.isolated_pools import end_all
from support.rollout.stage import Play, call

CALLS = 100
THREADS = 4
PROCESSES = 2


@pytest.fixture
def few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more can be had than these."""
    more = threads._Line._more

    def few(line: threads._Line, wanted: int) -> None:
        more(line, max(0, min(wanted, len(line._free) + THREADS - line._threads)))

    monkeypatch.setattr(threads._Line, "_more", few)


@pytest.fixture
def few_processes(monkeypatch: pytest.MonkeyPatch):
    end_all()
    monkeypatch.setattr(pool, "PROCESSES", PROCESSES)
    yield
    end_all()


def payments() -> list[ToolCall]:
    numbers = range(CALLS)
    return [call("pay", f'{{"number": {number}}}', call_id=f"c{number}") for number in numbers]


def waits(folder: Path, count: int) -> list[ToolCall]:
    """Calls that make a file `begun-…` when they begin, and end when there is a file `end`."""
    wanted = [{"path": f"{folder}/end", "begun": f"{folder}/begun-{n}"} for n in range(count)]
    return [call("until", json.dumps(one), call_id=f"c{n}") for n, one in enumerate(wanted)]


async def intents(play: Play) -> int:
    steps = (await play.history()).steps.values()
    return sum(isinstance(step, ToolIntent) for step in steps)


async def interrupted(play: Play) -> int:
    results = (await play.history()).results.values()
    return sum(result.error == INTERRUPTED_CALL for result in results)


async def until(condition) -> None:
    while not condition():
        await asyncio.sleep(0.005)


async def killed(task: "asyncio.Task[object]") -> None:
    """As near to a kill as this process comes: nothing more of the attempt is recorded."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.usefixtures("few_threads")
def test_calls_that_wait_for_a_thread_have_left_no_intent_and_are_made_later() -> None:
    begun: list[int] = []
    go = threading.Event()

    @tool
    def pay(number: int) -> int:
        """Pays."""
        begun.append(number)
        go.wait()
        return number

    calls = payments()

    async def main() -> None:
        play = Play()
        attempt = asyncio.create_task(play.perform(lambda t: t.tools(calls, pay)))
        await until(lambda: len(begun) == THREADS)
        assert await intents(play) == THREADS
        await killed(attempt)
        go.set()
        replies = await play.perform(lambda t: t.tools(calls, pay))
        assert await interrupted(play) == THREADS
        assert sum(reply.ok for reply in replies) == CALLS - THREADS
        assert sorted(begun) == list(range(CALLS))

    asyncio.run(main())


@pytest.mark.usefixtures("few_processes")
def test_calls_that_wait_for_a_process_have_left_no_intent_and_are_made_later(
    tmp_path: Path,
) -> None:
    end = tmp_path / "end"

    def begun() -> list[str]:
        return sorted(path.name for path in tmp_path.glob("begun-*"))

    calls = waits(tmp_path, 20)

    async def main() -> None:
        play = Play()
        attempt = asyncio.create_task(play.perform(lambda t: t.tools(calls, tools.until)))
        await until(lambda: len(begun()) == PROCESSES)
        assert await intents(play) == PROCESSES
        await killed(attempt)
        assert len(begun()) == PROCESSES
        end.touch()
        await play.perform(lambda t: t.tools(calls, tools.until))
        assert await interrupted(play) == PROCESSES
        assert len(begun()) == len(calls)

    asyncio.run(main())


@pytest.mark.usefixtures("few_processes")
def test_waiting_for_a_process_is_no_time_of_the_call(tmp_path: Path) -> None:
    end, calls = tmp_path / "end", waits(tmp_path, PROCESSES + 1)

    async def main() -> None:
        play, clock = Play(), ManualClock()
        attempt = asyncio.create_task(
            play.perform(lambda t: t.tools(calls, tools.until), clock=clock)
        )
        await until(lambda: len(list(tmp_path.glob("begun-*"))) == PROCESSES)
        await clock.advance(100)
        end.touch()
        await attempt
        taken = sorted(result.seconds for result in (await play.history()).results.values())
        assert taken == [0.0, *[100.0] * PROCESSES]

    asyncio.run(main())


@pytest.mark.usefixtures("few_threads")
def test_a_call_that_is_cancelled_while_it_waits_is_never_made_and_gives_its_place_back() -> None:
    begun: list[int] = []
    go = threading.Event()

    @tool
    def pay(number: int) -> int:
        """Pays."""
        begun.append(number)
        go.wait()
        return number

    async def rollout(t: holdfast.Rollout) -> None:
        running = [asyncio.create_task(t.tool(pay.call(number=n), pay)) for n in range(THREADS)]
        await until(lambda: len(begun) == THREADS)
        # More than may be admitted at once: those behind them get on all the same.
        waiting = [
            asyncio.create_task(t.tool(pay.call(number=n), pay))
            for n in range(THREADS, THREADS + 2 * threads.MAX_ADMITTED)
        ]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        go.set()
        await asyncio.gather(*running)
        assert (await t.tool(pay.call(number=-1), pay)).content == "-1"

    play = Play()
    asyncio.run(play.perform(rollout))
    assert sorted(begun) == [-1, *range(THREADS)]


@pytest.mark.usefixtures("few_threads")
def test_nothing_begins_once_the_run_is_asked_to_stop() -> None:
    begun: list[int] = []
    go = threading.Event()
    stopping = False

    @tool
    def pay(number: int) -> int:
        """Pays."""
        begun.append(number)
        go.wait()
        return number

    calls = payments()

    async def main() -> None:
        nonlocal stopping
        play = Play()
        attempt = asyncio.create_task(
            play.perform(lambda t: t.tools(calls, pay), stopping=lambda: stopping)
        )
        await until(lambda: len(begun) == THREADS)
        stopping = True
        go.set()
        with pytest.raises(RunStopped):
            await attempt
        assert len(begun) == await intents(play) == THREADS
        assert await interrupted(play) == 0

    asyncio.run(main())


class Shop(holdfast.Environment):
    """Its tool is called once, whatever happens."""

    name = "Shop"
    recovery = "stateless"

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.go = asyncio.Event()

    @property
    def tools(self):
        return [tool(self.buy)]

    async def reset(self, *, seed):
        return holdfast.Observation("open")

    async def step(self, action):
        return holdfast.Observation(action)

    async def buy(self, what: str) -> str:
        """Buys."""
        self.begun.append(what)
        await self.go.wait()
        return what


def test_calls_that_wait_for_their_turn_in_an_environment_have_left_no_intent() -> None:
    shops: list[Shop] = []

    async def rollout(t: holdfast.Rollout) -> list[str]:
        shops.append(Shop())
        episode = await t.env(shops[-1])

        def buys(what: str):
            async def branch(t: holdfast.Rollout) -> str:
                wanted = call("buy", f'{{"what": "{what}"}}', call_id=what)
                return (await t.tool(wanted, *episode.tools)).error

            return branch

        return await t.branch(buys("a"), buys("b"), buys("c"))

    async def main() -> None:
        play = Play()
        attempt = asyncio.create_task(play.perform(rollout))
        await until(lambda: shops and shops[0].begun)
        assert await intents(play) == 1
        await killed(attempt)
        attempt = asyncio.create_task(play.perform(rollout))
        await until(lambda: len(shops) == 2)
        shops[1].go.set()
        assert sorted(await attempt) == ["", "", INTERRUPTED_CALL]
        assert sorted(shops[0].begun + shops[1].begun) == ["a", "b", "c"]

    asyncio.run(main())
