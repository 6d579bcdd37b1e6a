"""A call is recorded when it begins. One that waits for a thread, a process or its turn is not, and
nobody takes it for interrupted."""

import asyncio
import json
import sqlite3
import threading
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

import holdfast
from holdfast.engine.export.export import What
from holdfast.engine.report import as_text
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.records.encoding.codec import decode
from holdfast.records.errors import Cause, EnvironmentBroken, RunStopped
from holdfast.records.failure import failure_of
from holdfast.records.group import GroupPolicy
from holdfast.records.history import History
from holdfast.records.message import ToolCall
from holdfast.records.step import INTERRUPTED_CALL, AttemptFailed, Contract, ToolIntent
from holdfast.records.trajectory import Status
from holdfast.rollout.replay.reply import ToolReply
from holdfast.rollout.threads import pool as threads
from holdfast.rollout.tool_step import INTERRUPTED
from holdfast.rollout.tools.isolated import pool
from holdfast.rollout.tools.tool import Tool, tool
from holdfast.testing import ManualClock
from support.engine.local_run import LocalRun
from support.rollout import dangerous_tools as tools
from support.rollout.isolated_pools import end_all
from support.rollout.stage import TrajectoryUnderTest, call

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
    return [call("until", json.dumps(item), call_id=f"c{n}") for n, item in enumerate(wanted)]


async def intents(subject: TrajectoryUnderTest) -> int:
    steps = (await subject.history()).steps.values()
    return sum(isinstance(step, ToolIntent) for step in steps)


async def interrupted(subject: TrajectoryUnderTest) -> int:
    results = (await subject.history()).results.values()
    return sum(result.error == INTERRUPTED_CALL for result in results)


async def until(condition) -> None:
    while not condition():
        await asyncio.sleep(0.005)


async def killed(task: "asyncio.Task[object]") -> None:
    """As near to a kill as this process comes: nothing more of the attempt is recorded."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.usefixtures("few_threads")
async def test_calls_that_wait_for_a_thread_have_left_no_intent_and_are_made_later() -> None:
    begun: list[int] = []
    go = threading.Event()

    @tool
    def pay(number: int) -> int:
        """Pays."""
        begun.append(number)
        go.wait()
        return number

    calls = payments()
    subject = TrajectoryUnderTest()
    attempt = asyncio.create_task(subject.perform(lambda t: t.tools(calls, pay)))
    await until(lambda: len(begun) == THREADS)
    assert await intents(subject) == THREADS
    await killed(attempt)
    go.set()
    replies = await subject.perform(lambda t: t.tools(calls, pay))
    assert await interrupted(subject) == THREADS
    assert sum(reply.ok for reply in replies) == CALLS - THREADS
    assert sorted(begun) == list(range(CALLS))


@pytest.mark.usefixtures("few_processes")
async def test_calls_that_wait_for_a_process_have_left_no_intent_and_are_made_later(
    tmp_path: Path,
) -> None:
    end = tmp_path / "end"

    def begun() -> list[str]:
        return sorted(path.name for path in tmp_path.glob("begun-*"))

    calls = waits(tmp_path, 20)
    subject = TrajectoryUnderTest()
    attempt = asyncio.create_task(subject.perform(lambda t: t.tools(calls, tools.until)))
    await until(lambda: len(begun()) == PROCESSES)
    assert await intents(subject) == PROCESSES
    await killed(attempt)
    assert len(begun()) == PROCESSES
    end.touch()
    await subject.perform(lambda t: t.tools(calls, tools.until))
    assert await interrupted(subject) == PROCESSES
    assert len(begun()) == len(calls)


@pytest.mark.usefixtures("few_processes")
async def test_waiting_for_a_process_is_no_time_of_the_call(tmp_path: Path) -> None:
    end, calls = tmp_path / "end", waits(tmp_path, PROCESSES + 1)
    subject, clock = TrajectoryUnderTest(), ManualClock()
    attempt = asyncio.create_task(
        subject.perform(lambda t: t.tools(calls, tools.until), clock=clock)
    )
    await until(lambda: len(list(tmp_path.glob("begun-*"))) == PROCESSES)
    await clock.advance(100)
    end.touch()
    await attempt
    taken = sorted(result.seconds for result in (await subject.history()).results.values())
    assert taken == [0.0, *[100.0] * PROCESSES]


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

    subject = TrajectoryUnderTest()
    asyncio.run(subject.perform(rollout))
    assert sorted(begun) == [-1, *range(THREADS)]


@pytest.mark.usefixtures("few_threads")
async def test_nothing_begins_once_the_run_is_asked_to_stop() -> None:
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
    subject = TrajectoryUnderTest()
    attempt = asyncio.create_task(
        subject.perform(lambda t: t.tools(calls, pay), stopping=lambda: stopping)
    )
    await until(lambda: len(begun) == THREADS)
    stopping = True
    go.set()
    with pytest.raises(RunStopped):
        await attempt
    assert len(begun) == await intents(subject) == THREADS
    assert await interrupted(subject) == 0


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


async def test_calls_that_wait_for_their_turn_in_an_environment_have_left_no_intent() -> None:
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

    subject = TrajectoryUnderTest()
    attempt = asyncio.create_task(subject.perform(rollout))
    await until(lambda: shops and shops[0].begun)
    assert await intents(subject) == 1
    await killed(attempt)
    attempt = asyncio.create_task(subject.perform(rollout))
    await until(lambda: len(shops) == 2)
    shops[1].go.set()
    assert sorted(await attempt) == ["", "", INTERRUPTED_CALL]
    assert sorted(shops[0].begun + shops[1].begun) == ["a", "b", "c"]


# --- a call that ended, and one that was interrupted


class Down:
    """A tool whose service is down for its first `calls`. It notes the keys that it is given."""

    def __init__(self, calls: int, error: Exception, *, hangs: bool = False):
        self.calls = calls
        self.error = error
        self.hangs = hangs
        self.keys: list[str] = []

    def tool(self, contract: Contract) -> Tool:
        async def look(idempotency_key: str) -> str:
            self.keys.append(idempotency_key)
            if len(self.keys) > self.calls:
                return "seen"
            if self.hangs:
                await asyncio.Event().wait()
            raise self.error

        return Tool(look, contract=contract, timeout=0.05 if self.hangs else 60)


def looking(tool: Tool, seen: list[str]):
    async def rollout(t: holdfast.Rollout) -> float:
        t.add("go")
        await t.generate()
        reply = await t.tool(call("look"), tool)
        seen.append(reply.content)
        await t.generate()
        return float(reply.ok)

    return rollout


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize("contract", list(Contract))
def test_a_call_that_raised_or_timed_out_is_made_again_with_its_key_under_any_contract(
    contract: Contract, hangs: bool
) -> None:
    down, seen = Down(2, ConnectionError("refused"), hangs=hangs), list[str]()
    local = LocalRun()
    local.run(looking(down.tool(contract), seen), max_retry=3)
    history = local.history()
    assert (history.status, history.reward, history.life) == (Status.COMPLETED, 1.0, 0)
    assert seen == ["seen"], "what infrastructure did to a call is no result"
    assert len(down.keys) == 3
    assert len(set(down.keys)) == 1
    assert [failure.cause for failure in history.failures] == [Cause.ENVIRONMENT] * 2
    assert len(history.generations) == len(local.policy.requests) == 2, "it was replayed"


@pytest.mark.parametrize("contract", list(Contract))
def test_a_tool_that_stays_down_fails_the_trajectory_with_its_own_error(contract: Contract) -> None:
    down, seen = Down(99, ConnectionError("refused")), list[str]()
    local = LocalRun(group=GroupPolicy(refill=1))
    local.run(looking(down.tool(contract), seen), max_retry=1)
    history = local.history()
    assert (history.status, history.reward, history.life) == (Status.FAILED, None, 1)
    assert history.finished is not None
    assert history.finished.reason == (
        "EnvironmentBroken: tool look broke: ConnectionError: refused"
    )
    assert (seen, len(down.keys), len(set(down.keys))) == ([], 4, 2)
    assert local.rows(What.SAMPLES) == []
    assert "healed" not in as_text(local.report())


async def test_a_call_that_ended_and_is_killed_the_second_time_is_interrupted() -> None:
    """Its second intent says that it began again; until then, a kill disturbs nothing."""
    subject, calls = TrajectoryUnderTest(), list[str]()

    @tool
    async def pay() -> str:
        """Pays."""
        calls.append("paid")
        if len(calls) == 1:
            raise ConnectionError("refused")
        return await asyncio.Event().wait()

    async def rollout(t: holdfast.Rollout) -> ToolReply:
        t.add("go")
        await t.generate()
        return await t.tool(call("pay"), pay)

    with pytest.raises(EnvironmentBroken) as broken:
        await subject.perform(rollout)
    failure = failure_of(broken.value, step="1", attempt=1)
    await subject.journal.append(await subject.lease(), [AttemptFailed(failure, 0.0)])
    assert not (await subject.history()).unfinished
    attempt = asyncio.create_task(subject.perform(rollout))
    await until(lambda: len(calls) == 2)
    await killed(attempt)
    assert (await subject.history()).unfinished == {"1"}
    reply = await subject.perform(rollout)
    assert (reply.error, len(calls)) == (INTERRUPTED_CALL, 2)


async def test_a_call_after_a_fork_has_another_key() -> None:
    """It stands where the replaced one stood, with the same id and arguments: a service that knows
    the key would answer with what it did for a conversation that is gone."""
    subject, keys = TrajectoryUnderTest(), list[str]()

    @tool
    async def pay(idempotency_key: str) -> str:
        """Pays."""
        keys.append(idempotency_key)
        return "paid"

    async def rollout(t: holdfast.Rollout, message: str) -> None:
        t.add(message)
        await t.generate()
        await t.tool(call("pay"), pay)

    await subject.perform(partial(rollout, message="go"))
    await subject.perform(partial(rollout, message="go on"))
    history = await subject.history()
    assert [fork.path for fork in history.forks] == ["0"]
    assert (len(keys), len(set(keys))) == (2, 2)
    await subject.perform(partial(rollout, message="go on"))
    assert len(keys) == 2, "it was replayed"


async def test_a_call_that_is_made_again_keeps_its_key_although_a_sibling_has_forked() -> None:
    subject = TrajectoryUnderTest()
    down = Down(1, ConnectionError("refused"))
    look = down.tool(Contract.IDEMPOTENT)

    async def rollout(t: holdfast.Rollout, message: str) -> None:
        answered = asyncio.Event()

        async def says(b: holdfast.Rollout) -> None:
            b.add(message)
            await b.generate()
            answered.set()

        async def looks(b: holdfast.Rollout) -> None:
            await answered.wait()
            await b.tool(call("look"), look)

        await t.branch(says, looks)

    with pytest.raises(EnvironmentBroken):
        await subject.perform(partial(rollout, message="go"))
    await subject.perform(partial(rollout, message="go on"))
    assert len((await subject.history()).forks) == 1
    assert (len(down.keys), len(set(down.keys))) == (2, 1)


class Interrupted:
    """A run whose process dies in the call of an at-most-once tool, as often as a test likes."""

    def __init__(self, group: GroupPolicy):
        self.local = LocalRun(samples=2, group=group)
        self.calls: list[str] = []
        self.seen: list[str] = []

    async def _rollout(self, t: holdfast.Rollout, *, dies: bool) -> float:
        @tool
        async def pay(idempotency_key: str) -> str:
            """Pays."""
            self.calls.append(idempotency_key)
            return await asyncio.Event().wait() if dies and t.key.sample == 0 else "paid"

        t.add("go")
        await t.generate()
        reply = await t.tool(call("pay"), pay)
        self.seen.append(reply.content)
        await t.generate()
        return float(reply.ok)

    def die(self) -> None:
        async def main() -> None:
            process = asyncio.create_task(self.local.work(partial(self._rollout, dies=True)))
            await until(lambda: len(self.calls) == 2 and self.seen == ["paid"])
            await asyncio.sleep(0.05)
            await killed(process)

        asyncio.run(main())

    def go_on(self, **options: object) -> History:
        self.local.run(partial(self._rollout, dies=False), **options)
        return self.local.history()


def test_a_call_in_which_the_process_died_makes_its_sample_anew_where_the_group_has_a_refill():
    killed_once = Interrupted(GroupPolicy(refill=1))
    killed_once.die()
    history = killed_once.go_on()
    assert (history.status, history.life, history.reward) == (Status.COMPLETED, 1, 1.0)
    assert killed_once.seen == ["paid", "paid"], "no model was told of an accident"
    (failure,) = history.failures
    assert (failure.type, failure.cause) == ("InterruptedCall", Cause.INFRASTRUCTURE)
    samples = killed_once.local.rows(What.SAMPLES)
    assert [(row["sample"], row["interrupted"]) for row in samples] == [(0, False), (1, False)]


def test_without_a_refill_the_model_is_told_and_the_trajectory_is_in_no_loss_and_no_baseline():
    killed_once = Interrupted(GroupPolicy(refill=0))
    killed_once.die()
    history = killed_once.go_on()
    assert (history.status, history.reward) == (Status.FAILED, None)
    assert killed_once.seen == ["paid", INTERRUPTED]
    assert history.interrupted_calls == ["pay"]
    assert len(killed_once.calls) == 2, "it was not called again"
    assert [row["sample"] for row in killed_once.local.rows(What.SAMPLES)] == [1]
    text = as_text(killed_once.local.report())
    assert "the process died during a call of tool pay" in text
    assert "healed" not in text


def test_to_retry_such_a_trajectory_is_to_make_the_call_again_with_its_key():
    killed_once = Interrupted(GroupPolicy(refill=0))
    killed_once.die()
    killed_once.go_on()
    history = killed_once.go_on(reopen_failed=True)
    assert (history.status, history.reward, history.life) == (Status.COMPLETED, 1.0, 0)
    assert killed_once.seen == ["paid", INTERRUPTED, "paid"]
    interrupted_key, *_, again = sorted(killed_once.calls, key=killed_once.calls.count)
    assert killed_once.calls.count(again) == 2
    assert killed_once.calls.count(interrupted_key) == 1


def test_a_run_that_keeps_interrupted_trajectories_trains_them_and_marks_them():
    killed_once = Interrupted(GroupPolicy(refill=1, keep_interrupted=True))
    killed_once.die()
    history = killed_once.go_on()
    assert (history.status, history.life, history.reward) == (Status.COMPLETED, 0, 0.0)
    assert killed_once.seen == ["paid", INTERRUPTED]
    samples = killed_once.local.rows(What.SAMPLES)
    assert [(row["sample"], row["interrupted"]) for row in samples] == [(0, True), (1, False)]
    assert "1 tool call interrupted" in as_text(killed_once.local.report())


# --- a loop that is busy


async def test_of_async_calls_few_are_recorded_before_they_begin_however_busy_the_loop_is(
    tmp_path: Path,
) -> None:
    begun, waiting = list[int](), list[int]()
    place = tmp_path / "journal.db"

    def recorded() -> int:
        with closing(sqlite3.connect(place)) as reader:
            bodies = reader.execute("SELECT body FROM records").fetchall()
        return sum(isinstance(decode(body), ToolIntent) for (body,) in bodies)

    @tool
    async def pay(number: int) -> int:
        """Pays."""
        begun.append(number)
        time.sleep(0.01)  # What begins keeps the loop from all others.
        waiting.append(recorded() - len(begun))
        return number

    async with SqliteJournal(place) as journal:
        subject, calls = TrajectoryUnderTest(journal=journal), payments()
        replies = await subject.perform(lambda t: t.tools(calls, pay))
    assert [reply.content for reply in replies] == [str(number) for number in range(CALLS)]
    assert max(waiting) < threads.MAX_ADMITTED
