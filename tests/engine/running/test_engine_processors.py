"""Processors in a run: set up once, cleaned up once, and nothing recorded after the end."""

import asyncio
import inspect

import pytest

from holdfast.journal.sqlite.journal import MemoryJournal
from holdfast.records.errors import (
    PolicyRefused,
    RunStopped,
)
from holdfast.rollout.episodes.environment import Environment, Observation
from holdfast.rollout.processors.processor import RolloutProcessor
from holdfast.rollout.tools.tool import tool
from support.engine.local_run import LocalRun, turn
from support.journal.faulty_journal import FaultyJournal
from support.rollout.stage import call


class Lifetime(RolloutProcessor):
    def __init__(self, *, fails: str = ""):
        self.calls: list[str] = []
        self.fails = fails

    async def setup(self):
        self.calls.append("setup")
        if self.fails == "setup":
            raise ConnectionError("no browser")

    async def rollout(self, t):
        self.calls.append("rollout")
        if self.fails == "run":
            raise PolicyRefused("403")
        return 1.0

    async def acleanup(self):
        self.calls.append("acleanup")


def test_a_processor_is_set_up_once_and_cleaned_up_once():
    processor = Lifetime()
    LocalRun(*"abc").run(processor)
    assert processor.calls == ["setup", *["rollout"] * 3, "acleanup"]


def test_a_processor_is_cleaned_up_when_the_run_fails():
    processor = Lifetime(fails="run")
    assert isinstance(LocalRun().run(processor).fatal, PolicyRefused)
    assert processor.calls == ["setup", "rollout", "acleanup"]


def test_a_processor_is_cleaned_up_when_its_set_up_fails():
    processor, local = Lifetime(fails="setup"), LocalRun()
    with pytest.raises(ConnectionError):
        local.run(processor)
    local.assert_nothing_left()
    assert processor.calls == ["setup", "acleanup"]


def test_a_processor_that_starts_too_many_tasks_is_told_and_leaves_none():
    class Twice(Lifetime):
        def __call__(self, tasks, config):
            return [*super().__call__(tasks, config), *super().__call__(tasks, config)]

    local = LocalRun()
    local.run(Twice())
    (failure,) = local.history().failures
    assert "returned 2 of Task, Task for 1 row" in failure.message


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda coroutine: None, "returned NoneType for 1 row"),
        (lambda coroutine: coroutine, "returned coroutine for 1 row"),
        (lambda coroutine: [coroutine], "returned 1 of coroutine for 1 row"),
        (lambda coroutine: [], "returned 0 of  for 1 row"),
    ],
    ids=["nothing", "a coroutine", "coroutines", "none"],
)
def test_a_processor_that_gives_no_tasks_is_told_what_it_gave(returned, message):
    class Odd(Lifetime):
        def __call__(self, tasks, config):
            coroutine = self.rollout(config.open(tasks[0]))
            arguments = returned(coroutine)
            if arguments is None or arguments == []:
                coroutine.close()
            return arguments

    local = LocalRun()
    local.run(Odd())
    (failure,) = local.history().failures
    assert message in failure.message


def test_a_context_that_is_kept_for_another_trajectory_is_refused_there():
    class Keeps(RolloutProcessor):
        async def rollout(self, t):
            self.t = t
            await asyncio.sleep(0.05 * int(t.task.id))
            await turn(self.t, t.task.id)
            return 1.0

    local = LocalRun("0", "1", "2")
    local.run(Keeps(), max_retry=0)
    assert [status for status, _ in local.statuses().values()] == ["FAILED", "FAILED", "COMPLETED"]
    assert [len(item.generations) for item in local.histories().values()] == [0, 0, 1]
    (failure,) = local.history("0/0").failures
    assert "is the context of run/2/0" in failure.message
    assert failure.line.startswith("UsageError")


def test_a_rollout_cannot_record_anything_after_it_returned():
    late = []

    async def rollout(t):
        async def left_behind():
            await asyncio.sleep(0.02)
            try:
                await turn(t)
            except RunStopped as error:
                late.append(error)

        late.append(asyncio.create_task(left_behind()))
        return 1.0

    async def slow(view):
        await late[0]
        return 1.0

    local = LocalRun()
    local.run(rollout, slow)
    assert isinstance(late[1], RunStopped)
    assert not local.history().steps


def test_a_step_that_became_durable_after_it_was_given_up_is_no_part_of_the_trajectory():
    class Slow(FaultyJournal):
        async def append(self, lease, records, **options):
            await super().append(lease, records, **options)
            await asyncio.sleep(0.05)

    async def rollout(t):
        try:
            async with asyncio.timeout(0.02):
                await turn(t)
        except TimeoutError:
            return 1.0

    seen = []
    local = LocalRun(journal=Slow(MemoryJournal()))
    local.run(rollout, lambda view: seen.append(len(view.turns)) or 1.0)
    assert seen == [len(local.history().generations)] == [0]


class Still(Environment):
    """Nothing happens in it."""

    name = "Still"
    recovery = "stateless"

    @property
    def tools(self):
        return [tool(self.look)]

    async def reset(self, *, seed):
        return Observation("quiet")

    async def step(self, action):
        return Observation(action)

    async def look(self) -> str:
        """Looks."""
        return "quiet"


async def _nothing(t):
    return None


FOREIGN = {
    "add": lambda t, other, episode: other.add("from elsewhere"),
    "limit": lambda t, other, episode: other.limit(turns=1),
    "truncate": lambda t, other, episode: other.truncate("enough"),
    "generate": lambda t, other, episode: other.generate(tools=[ask]),
    "tool": lambda t, other, episode: other.tool(call("ask"), ask),
    "tools": lambda t, other, episode: other.tools([], ask),
    "value": lambda t, other, episode: other.value(lambda: 1, name="one"),
    "env": lambda t, other, episode: other.env(Still()),
    "act": lambda t, other, episode: other.act(episode, "on"),
    "branch": lambda t, other, episode: other.branch(_nothing),
    "sub": lambda t, other, episode: other.sub(_nothing),
    "beside": lambda t, other, episode: other.beside(),
    "episode.step": lambda t, other, episode: episode.step("on"),
    "episode.close": lambda t, other, episode: episode.close(),
    "an episode of another": lambda t, other, episode: t.act(episode, "on"),
    "tools of another's episode": lambda t, other, episode: t.tool(call("look"), *episode.tools),
}


def ask() -> str:
    """Asks."""
    return "yes"


@pytest.mark.parametrize("use", FOREIGN.values(), ids=FOREIGN)
def test_nothing_of_another_trajectory_can_be_changed_or_recorded_in(use):
    kept, used = asyncio.Event(), asyncio.Event()

    class Keeps(RolloutProcessor):
        async def rollout(self, t):
            if t.task.id == "owner":
                self.kept = (t, await t.env(Still()))
                kept.set()
                await used.wait()
                await turn(t, "mine")
                assert not self.kept[1]._closed
                return 1.0
            await kept.wait()
            try:
                engine = use(t, *self.kept)
                if inspect.isawaitable(engine):
                    await engine
            finally:
                used.set()
            return 1.0

    local = LocalRun("owner", "other")
    local.run(Keeps(), max_retry=0)
    assert [status for status, _ in local.statuses().values()] == ["COMPLETED", "FAILED"]
    (failure,) = local.history("other/0").failures
    assert failure.line.startswith("UsageError")
    assert "run/owner/0" in failure.message
    owner = local.history("owner/0")
    assert list(owner.steps) == ["0", "1"]
    (message,) = owner.generations
    assert [item.content for item in message.added] == ["mine"]
