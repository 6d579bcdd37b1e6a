"""Worlds come back after faults, and nothing of them is left."""

import asyncio
import itertools
import re
from collections.abc import Callable, Iterator

import pytest

from holdfast.engine.open_run import finished_run
from holdfast.journal.worlds import WorldPhase, WorldRow
from holdfast.testing import FakeContainers
from holdfast.worlds.running.environment import WorldEnvironment
from support.engine.local_run import LocalRun
from support.environments.workspaces import needs_bwrap

pytestmark = needs_bwrap
SPEC = "docker:busybox"
TURNS = 4
EXPECTED = [str(number) for number in range(1, TURNS + 1)]
CALLS = (
    "POST .*/containers/create",
    "POST .*/containers/[^/]+/start",
    "POST .*/containers/[^/]+/exec",
    "POST .*/exec/[^/]+/start",
    "GET .*/exec/[^/]+/json",
    "POST .*/commit",
    "DELETE .*/containers/.*",
    "DELETE .*/images/.*",
    "GET .*/containers/json",
    "GET .*/images/json",
    "GET .*/stats",
)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeContainers]:
    with FakeContainers() as fake:
        monkeypatch.setenv("DOCKER_HOST", fake.address)
        yield fake


class Counting:
    """A rollout that counts in a file of its world. `between` is called before each turn."""

    def __init__(self, between: Callable[[int], object] = lambda _: None, every: int | None = 1):
        self.between = between
        self.every = every
        self._outputs: dict[str, list[str]] = {}

    async def __call__(self, t):
        episode = await t.env(WorldEnvironment(SPEC, snapshot_every=self.every))
        outputs = self._outputs[t.task.id] = []
        t.add("go")
        for turn in range(TURNS):
            await t.generate()
            self.between(turn)
            outputs.append((await episode.step("echo x >> /f; wc -l < /f")).text)

    @property
    def outputs(self) -> list[str]:
        """The outputs of the last attempt, which are the same for each task."""
        assert all(outputs == EXPECTED for outputs in self._outputs.values()), self._outputs
        return next(iter(self._outputs.values()))


def rows(run: LocalRun, *, removed: bool = True) -> list[WorldRow]:
    return asyncio.run(run.journal.worlds(removed=removed))


def assert_nothing_left(engine: FakeContainers, run: LocalRun) -> None:
    assert (engine.containers, engine.snapshots) == ([], [])
    assert rows(run, removed=False) == []


def once(action: Callable[[], object], turn: int = 2) -> Callable[[int], object]:
    """Returns a function that does the action at one turn, the first time."""
    left = [action]
    return lambda number: left.pop()() if left and number == turn else None


def test_a_calm_run_uses_one_world_and_keeps_nothing(engine) -> None:
    run, rollout = LocalRun("a"), Counting()
    run.run(rollout)
    assert rollout.outputs == EXPECTED
    assert [row.intent.is_snapshot for row in rows(run)].count(False) == 1
    assert all(row.state is WorldPhase.REMOVED for row in rows(run))
    assert_nothing_left(engine, run)


@pytest.mark.parametrize("every", [1, 3, None])
def test_a_killed_container_is_restored_and_later_commands_run_again(engine, every) -> None:
    rollout = Counting(once(lambda: engine.kill(engine.containers[0])), every)
    run = LocalRun("a")
    run.run(rollout)
    assert rollout.outputs == EXPECTED
    assert [row.intent.is_snapshot for row in rows(run)].count(False) == 2
    assert_nothing_left(engine, run)


def test_a_removed_snapshot_is_made_up_for_by_an_older_one(engine) -> None:
    def lose_both() -> None:
        engine.kill(engine.containers[0])
        engine.state.remove_container(engine.containers[0])
        engine.state.remove_image(engine.snapshots[-1])

    rollout, run = Counting(once(lose_both)), LocalRun("a")
    run.run(rollout)
    assert rollout.outputs == EXPECTED
    assert_nothing_left(engine, run)


def test_a_stopped_run_goes_on_in_the_same_world(engine) -> None:
    run = LocalRun("a")
    first = Counting(lambda turn: run.stop.request("enough") if turn == 2 else None)
    run.run(first)
    (container,) = engine.containers
    second = Counting()
    run.run(second)
    assert second.outputs == EXPECTED
    worlds = [row for row in rows(run) if not row.intent.is_snapshot]
    assert [row.handle for row in worlds] == [container.name]
    assert_nothing_left(engine, run)


def test_a_world_that_is_gone_after_a_stop_is_restored(engine) -> None:
    run = LocalRun("a")
    run.run(Counting(lambda turn: run.stop.request("enough") if turn == 2 else None))
    engine.state.remove_container(engine.containers[0])
    second = Counting()
    run.run(second)
    assert second.outputs == EXPECTED
    assert_nothing_left(engine, run)


def test_an_engine_that_restarts_is_waited_for(engine) -> None:
    def restart() -> None:
        engine.stop()
        engine.start()

    rollout, run = Counting(once(restart)), LocalRun("a", "b")
    run.run(rollout)
    assert rollout.outputs == EXPECTED
    assert {status for status, _ in run.statuses().values()} == {"COMPLETED"}
    assert_nothing_left(engine, run)


@pytest.mark.parametrize(
    "messages",
    [
        ["connection error: containerd is gone\r\n"],
        ["OCI runtime exec failed: connection reset by peer\r\n"],
        ["OCI runtime exec failed: a\r\n", "connection error: b\r\n"],
    ],
)
def test_a_command_that_the_engine_does_not_start_is_no_result(engine, messages) -> None:
    rollout = Counting(once(lambda: engine.state.start_errors.extend(messages)))
    run = LocalRun("a")
    run.run(rollout)
    assert rollout.outputs == EXPECTED
    assert_nothing_left(engine, run)


def test_a_world_in_which_nothing_can_be_started_says_so(engine) -> None:
    message = "OCI runtime exec failed: resource temporarily unavailable"
    outputs = []

    async def rollout(t):
        episode = await t.env(WorldEnvironment(SPEC))
        t.add("go")
        await t.generate()
        engine.state.start_errors.extend([f"{message}\r\n"] * 3)
        outputs.append((await episode.step("true")).text)

    LocalRun("a").run(rollout)
    assert outputs == [f"{message}\r\n[exit code 126]"]


def test_a_command_that_gives_another_output_forks(engine) -> None:
    async def rollout(t):
        episode = await t.env(WorldEnvironment(SPEC, snapshot_every=100))
        t.add("go")
        await t.generate()
        await episode.step(
            "cat /proc/sys/kernel/random/boot_id | wc -c; head -c 9 /dev/urandom | od"
        )
        await t.generate()
        kill(0)
        await episode.step("true")

    kill = once(lambda: engine.kill(engine.containers[0]), turn=0)
    run = LocalRun("a")
    run.run(rollout)
    history = run.history()
    assert history.status.name == "COMPLETED"
    assert [fork.reason for fork in history.forks] == ["the environment came back different"]
    assert_nothing_left(engine, run)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("request_text", CALLS)
def test_every_lost_answer_leaves_nothing_and_doubles_nothing(engine, request_text, after) -> None:
    for skipped in range(3):
        rollout, run = Counting(), LocalRun("a")
        seen = itertools.count()
        begun = len(engine.requests)

        def lose(turn: int, skipped=skipped, seen=seen) -> None:
            if next(seen) == skipped:
                engine.lose(request_text, after=after)

        rollout.between = lose
        run.run(rollout)
        assert rollout.outputs == EXPECTED
        assert run.statuses() == {"a/0": ("COMPLETED", True)}
        assert_nothing_left(engine, run)
        assert any(re.fullmatch(request_text, text) for text in engine.requests[begun:])


def test_a_finished_run_with_worlds_left_is_worked_on_again(engine) -> None:
    run = LocalRun("a")
    engine.lose("DELETE .*/containers/.*", times=100)
    run.run(Counting())
    assert len(engine.containers) == 1
    assert asyncio.run(finished_run(run.journal, run.spec)) is None
    engine.forgive()
    run.run(Counting())
    assert_nothing_left(engine, run)
    assert asyncio.run(finished_run(run.journal, run.spec)) is not None
