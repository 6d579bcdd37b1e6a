"""Environments that break, hang, or are used as they cannot be: what becomes of the episode."""

import asyncio
import threading

import pytest

from holdfast.records.errors import EnvironmentBroken, UsageError
from holdfast.rollout.episodes.environment import Environment, Observation
from support.rollout import worlds
from support.rollout.stage import TrajectoryUnderTest, call
from support.rollout.worlds import Broken, Counter, play_three


@pytest.fixture(autouse=True)
def calls():
    worlds.CALLS.clear()
    return worlds.CALLS


def perform(subject: TrajectoryUnderTest, rollout, **options):
    return asyncio.run(subject.perform(rollout, **options))


@pytest.mark.parametrize("where", ["reset", "step"])
def test_an_environment_that_raises_is_broken_and_closed(where, calls):
    with pytest.raises(EnvironmentBroken, match=rf"Broken\.{where} broke: RuntimeError"):
        perform(TrajectoryUnderTest(), lambda t: play_three(t, lambda: Broken(where)))
    assert calls[-1] == "close"


def test_an_environment_that_cannot_be_closed_is_recorded_and_harms_nothing():
    subject = TrajectoryUnderTest()

    async def rollout(t):
        episode = await play_three(t, lambda: Broken("close"))
        await episode.close()
        return episode.total_reward, t._session.state.closing_records

    reward, (failed,) = perform(subject, rollout)
    assert reward == 6.0
    assert failed.failure.message == "a fault in close"


def test_a_hanging_step_is_broken_at_its_timeout():
    class Hangs(Counter):
        def reset(self, *, seed):
            self.timeout = 0.05  # Of what comes after it.
            return super().reset(seed=seed)

        def step(self, action):
            threading.Event().wait(5)

        async def close(self):
            pass

    with pytest.raises(EnvironmentBroken, match=r"Hangs.step was not done within 0.05 s"):
        perform(TrajectoryUnderTest(), lambda t: play_three(t, Hangs))


def test_all_blocking_calls_run_in_one_thread_of_the_environments_own():
    names = set()

    class Bound(Counter):
        def reset(self, *, seed):
            names.add(threading.current_thread())
            return super().reset(seed=seed)

        def add(self, amount: int) -> str:
            """Adds an amount."""
            names.add(threading.current_thread())
            return super().add(amount)

    async def rollout(t):
        episode = await t.env(Bound())
        await t.tool(call("add", '{"amount": 1}'), *episode.tools)

    perform(TrajectoryUnderTest(), rollout)
    assert len(names) == 1
    assert threading.main_thread() not in names


def test_an_inline_environment_runs_on_the_loop_itself():
    seen = set()

    class Quick(Counter):
        inline = True

        def step(self, action):
            seen.add(threading.current_thread())
            return super().step(action)

        def add(self, amount: int) -> str:
            """Adds an amount."""
            seen.add(threading.current_thread())
            return super().add(amount)

    async def rollout(t):
        episode = await play_three(t, Quick)
        await t.tool(call("add", '{"amount": 1}'), *episode.tools)

    perform(TrajectoryUnderTest(), rollout)
    assert seen == {threading.main_thread()}


def test_an_instance_in_use_is_refused():
    shared = Counter()

    async def rollout(t):
        await t.env(shared)
        await t.env(shared)

    with pytest.raises(UsageError, match="in use already: make a new instance"):
        perform(TrajectoryUnderTest(), rollout)


def test_a_step_after_the_end_is_refused():
    async def rollout(t):
        episode = await t.env(Counter(goal=1))
        await episode.step("5")
        assert episode.over
        await episode.step("5")

    with pytest.raises(UsageError, match="is over"):
        perform(TrajectoryUnderTest(), rollout)


@pytest.mark.parametrize(
    ("answer", "arguments"),
    [
        (7, "Odd.step: it wants to return an Observation or a string, not 7"),
        ((5, 1.0, True), r"not \(5, 1.0, True\); return Observation\(text, reward=…, done=…\)$"),
        (Observation("x", reward=float("nan")), "reward nan is not a finite number"),
        (Observation("x", done="no"), "Odd.step: done is True or False, not 'no'"),
        (Observation("x", truncated=[]), r"truncated is True or False, not \[\]"),
        (Observation("x", info={"x": object()}), "object"),
    ],
)
def test_an_answer_that_cannot_be_recorded_is_a_bug_and_says_so(answer, arguments):
    class Odd(Counter):
        def step(self, action):
            return answer

    with pytest.raises(TypeError, match=arguments) as caught:
        perform(TrajectoryUnderTest(), lambda t: play_three(t, Odd))
    assert isinstance(caught.value, UsageError), "no line of ours explains it"
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def _without_seed(self):
    return "x"


def _of_two(self, action, more):
    return "x"


async def _of_none(self):
    return "x"


@pytest.mark.parametrize(
    ("methods", "arguments"),
    [
        (
            {"reset": _without_seed},
            r"Odd.reset must take the keyword seed: def reset\(self, \*, seed\)",
        ),
        ({"step": _of_two}, r"Odd.step must take the action: def step\(self, action\)"),
        ({"step": _of_none}, r"Odd.step must take the action"),
        ({"reset": None}, r"Odd.reset must take the keyword seed"),
    ],
)
def test_methods_that_cannot_be_called_are_refused_before_anything_is_opened(methods, arguments):
    odd = type("Odd", (Counter,), methods)
    with pytest.raises(UsageError, match=arguments):
        perform(TrajectoryUnderTest(), lambda t: play_three(t, odd))


def test_a_recovery_level_that_does_not_exist_is_refused():
    with pytest.raises(
        UsageError, match="'magic' is not a recovery level; there are snapshot, replay"
    ):
        perform(TrajectoryUnderTest(), lambda t: play_three(t, lambda: Counter("magic")))


def test_an_environment_that_defines_nothing_says_what_it_lacks():
    with pytest.raises(UsageError, match=r"defines no `reset\(self, \*, seed\)`"):
        perform(TrajectoryUnderTest(), lambda t: play_three(t, Environment))
