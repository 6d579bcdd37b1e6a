"""Worlds that sub-rollouts and branches share, and what they may spend together."""

import asyncio

import pytest

from holdfast.records.errors import Rewound, RunStopped, ToolSaysNo
from holdfast.rollout.episodes.environment import Observation
from support.rollout.resumes import history, killed_after, perform
from support.rollout.stage import Oracle, TrajectoryUnderTest
from support.rollout.worlds import AsyncCounter, Counter


def stopped(subject: TrajectoryUnderTest, rollout, *, after: int) -> None:
    with pytest.raises(RunStopped):
        perform(subject, rollout, stopping=killed_after(after))


# --- what hangs on an opening


class Named(Counter):
    """A counter of a given identity, that begins at a given number."""

    def __init__(self, identity: str, start: int):
        super().__init__()
        self._identity, self._start = identity, start

    @property
    def identity(self):
        return self._identity

    def reset(self, *, seed):
        return super().reset(seed=self._start)


@pytest.mark.parametrize(
    ("identity", "rewound"), [("other", False), ("same", True)], ids=["another", "came back other"]
)
def test_steps_in_an_environment_that_a_sub_rollout_opened_go_with_its_opening(identity, rewound):
    async def rollout(t, made):
        episode = await t.sub(lambda c: c.env(made))
        seen = [episode.observation.text]
        for action in "123":
            seen.append((await t.act(episode, action)).text)
        await t.generate()
        return seen, made.number

    subject = TrajectoryUnderTest()
    stopped(subject, lambda t: rollout(t, Named("same", 1)), after=4)
    if rewound:
        with pytest.raises(Rewound):
            perform(subject, lambda t: rollout(t, Named(identity, 2)))
    outcome = perform(subject, lambda t: rollout(t, Named(identity, 2)))
    assert outcome == (["at 2", "at 3", "at 5", "at 8"], 8)
    assert [fork.path for fork in history(subject).forks] == ["0.0.0"]


# --- branches that share a world


def test_one_world_that_came_back_different_counts_once_however_many_branches_it_cuts():
    class Marked(AsyncCounter):
        def __init__(self, mark: str):
            super().__init__()
            self.mark = mark

        async def step(self, action):
            seen = await super().step(action)
            await asyncio.sleep(0)
            return Observation(seen.text + self.mark, seen.reward)

    async def rollout(t, mark):
        episode = await t.env(Marked(mark))

        async def twice(c):
            await c.act(episode, "1")
            await asyncio.sleep(0.002)
            await c.act(episode, "2")

        await t.branch(*[twice] * 4)
        await t.generate()

    subject = TrajectoryUnderTest()
    stopped(subject, lambda t: rollout(t, ""), after=9)
    with pytest.raises(Rewound):
        perform(subject, lambda t: rollout(t, "!"))
    stored = history(subject)
    assert stored.rewinds == 1
    assert sorted(fork.path for fork in stored.forks) == ["1.0.0", "1.1.0", "1.2.0", "1.3.0"]


def test_no_snapshot_holds_what_a_diverged_branch_did():
    """While one branch goes on, the other asks anew, and what it did is no longer true."""

    async def rollout(t, *, question, is_first):
        episode = await t.env(AsyncCounter("snapshot", goal=10_000), seed=1)
        came, went = asyncio.Event(), asyncio.Event()
        t.add("go")

        async def branch(c):
            await c.act(episode, "10")
            if is_first:
                await went.wait()
                await c.generate()
            else:
                await c.act(episode, "20")
            came.set()

        async def other(c):
            if not is_first:
                await came.wait()
            c.add(question)
            await c.generate()
            await c.act(episode, "100")
            await c.act(episode, "200" if is_first else "400")
            went.set()

        await t.branch(branch, other)
        await t.generate()
        return episode.environment.number

    subject = TrajectoryUnderTest()
    with pytest.raises(RunStopped):
        perform(
            subject,
            lambda t: rollout(t, question="what?", is_first=True),
            stopping=killed_after(5),
        )
    with pytest.raises(Rewound):
        perform(subject, lambda t: rollout(t, question="why?", is_first=False))
    assert perform(subject, lambda t: rollout(t, question="why?", is_first=False)) == 531
    assert _snapshots(subject) == _sums(subject)


def _snapshots(subject: TrajectoryUnderTest) -> list[tuple[int, int]]:
    async def read():
        world = (await subject.history()).worlds["0"]
        return [
            (applied, int(await subject.journal.get_blob(digest)))
            for applied, digest in world.snapshots
        ]

    result = asyncio.run(read())
    assert result
    return result


def _sums(subject: TrajectoryUnderTest) -> list[tuple[int, int]]:
    """What each snapshot has to hold: the sum of the actions before it."""
    stored = history(subject)
    amounts = [int(stored.steps[path].action) for path in stored.worlds["0"].actions]
    return [(applied, 1 + sum(amounts[:applied])) for applied, _ in stored.worlds["0"].snapshots]


# --- budgets of sub-rollouts


def test_sub_rollouts_side_by_side_have_the_same_budgets_in_whatever_order_they_end():
    async def rollout(t, delays):
        t.limit(tokens=40)

        async def sub_rollout(c):
            c.add("hi")
            await asyncio.sleep(delays.pop(0))
            await c.generate()

        await asyncio.gather(t.sub(sub_rollout), t.sub(sub_rollout))
        await t.generate()
        await t.generate()

    subject = TrajectoryUnderTest(Oracle(lambda request: "x" * 9))
    with pytest.raises(RunStopped):
        perform(subject, lambda t: rollout(t, [0.01, 0.0]), stopping=killed_after(3))
    perform(subject, lambda t: rollout(t, [0.0, 0.01]))
    assert not history(subject).forks
    assert [request.sampling.max_tokens for request in subject.oracle.requests] == [40, 40, 20, 10]


def test_what_a_sub_rollout_sampled_is_spent_though_it_raised():
    async def rollout(t):
        async def fails(c):
            await c.generate()
            raise ToolSaysNo("no")

        with pytest.raises(ToolSaysNo):
            await t.sub(fails)
        return t.spent.tokens

    assert perform(TrajectoryUnderTest(Oracle(lambda request: "x" * 9)), rollout) == 10


# --- snapshots of what is history


def test_a_snapshot_of_steps_that_were_cut_is_not_restored():
    async def rollout(t, second):
        episode = await t.env(Counter("snapshot"), seed=1)
        t.add("go")
        for action in ("10", second, "40"):
            await episode.step(action)
            await t.generate()
        return episode.environment.number

    subject = TrajectoryUnderTest()
    stopped(subject, lambda t: rollout(t, "2"), after=6)
    stopped(subject, lambda t: rollout(t, "3"), after=1)
    assert perform(subject, lambda t: rollout(t, "3")) == 1 + 10 + 3 + 40
    assert [fork.path for fork in history(subject).forks] == ["3"]
