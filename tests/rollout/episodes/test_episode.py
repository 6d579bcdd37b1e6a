"""What an environment is asked, what is recorded of it, and how it comes back."""

import asyncio

import pytest

from holdfast.records.errors import EnvironmentBroken, RunStopped, Truncated, UsageError
from holdfast.records.step import EnvironmentStepped, Snapshotted, ToolIntent
from holdfast.testing.manual_clock import ManualClock
from support.rollout import worlds
from support.rollout.stage import Oracle, TrajectoryUnderTest, call
from support.rollout.worlds import AsyncCounter, Counter, play_three


@pytest.fixture(autouse=True)
def calls():
    worlds.CALLS.clear()
    return worlds.CALLS


def killed_after(steps: int):
    """Stops the run after so many live steps, as a kill would."""
    count = iter(range(steps))
    return lambda: next(count, None) is None


def perform(subject: TrajectoryUnderTest, rollout, **options):
    return asyncio.run(subject.perform(rollout, **options))


def test_an_episode_tells_what_the_environment_answers():
    async def rollout(t):
        episode = await play_three(t)
        first = episode.observation
        assert (first.reward, first.done, first.ok) == (3.0, False, True)
        return episode

    episode = perform(TrajectoryUnderTest(), rollout)
    assert episode.rewards == [1.0, 2.0, 3.0]
    assert episode.total_reward == 6.0


def test_every_answer_is_recorded_with_its_reward(calls):
    subject = TrajectoryUnderTest()
    perform(subject, play_three)
    history = asyncio.run(subject.history())
    opening, *steps = [s for s in history.in_order if isinstance(s, EnvironmentStepped)]
    assert opening.is_opening
    assert opening.environment == "0"
    assert [(s.action, s.reward, s.environment) for s in steps] == [
        ("1", 1.0, "0"),
        ("2", 2.0, "0"),
        ("3", 3.0, "0"),
    ]
    assert calls == ["reset", "step 1", "step 2", "step 3", "close"]


def test_on_replay_nothing_of_the_environment_is_called(calls):
    subject = TrajectoryUnderTest()
    first = perform(subject, play_three)
    calls.clear()
    again = perform(subject, play_three)
    assert again.observation == first.observation
    assert again.rewards == first.rewards
    assert calls == []


def test_a_stopped_episode_comes_back_by_replay(calls):
    subject = TrajectoryUnderTest()
    with pytest.raises(RunStopped):
        perform(subject, play_three, stopping=killed_after(3))
    calls.clear()
    episode = perform(subject, play_three)
    assert calls == ["reset", "step 1", "step 2", "step 3", "close"]
    assert episode.rewards == [1.0, 2.0, 3.0]


def snapshotting(t_count: int = 3):
    async def rollout(t):
        episode = await t.env(Counter("snapshot"))
        for n in range(1, t_count + 1):
            t.add(episode.observation)
            await t.generate()
            await episode.step(str(n))
        return episode

    return rollout


def test_a_snapshot_is_taken_between_turns_and_restored(calls):
    subject = TrajectoryUnderTest()
    with pytest.raises(RunStopped):
        perform(subject, snapshotting(), stopping=killed_after(6))
    assert "snapshot" in calls
    calls.clear()
    episode = perform(subject, snapshotting())
    restored = [item for item in calls if item.startswith("restore")]
    assert len(restored) == 1
    assert "reset" not in calls
    assert calls[0] == restored[0]
    assert episode.rewards == [1.0, 2.0, 3.0]


def test_what_was_done_after_the_last_snapshot_is_done_again(calls):
    async def rollout(t):
        episode = await t.env(Counter("snapshot"))
        await episode.step("1")
        await t.generate()
        await episode.step("2")
        await episode.step("3")
        await episode.step("4")
        return episode.observation

    subject = TrajectoryUnderTest()
    with pytest.raises(RunStopped):
        perform(subject, rollout, stopping=killed_after(5))
    calls.clear()
    seen = perform(subject, rollout)
    assert [item.split()[0] for item in calls] == ["restore", "step", "step", "step", "close"]
    assert calls[1:4] == ["step 2", "step 3", "step 4"]
    assert seen.text == perform(TrajectoryUnderTest(), rollout).text


def test_an_unchanged_environment_is_not_snapshotted_again(calls):
    async def rollout(t):
        episode = await t.env(Counter("snapshot"))
        await episode.step("1")
        await t.generate()
        await t.generate()
        await t.generate()

    subject = TrajectoryUnderTest()
    perform(subject, rollout)
    assert calls.count("snapshot") == 1
    records = asyncio.run(_records(subject))
    assert sum(isinstance(record, Snapshotted) for record in records) == 1


async def _records(subject):
    return await subject.journal.history((await subject.lease()).id)


def test_a_stateless_environment_is_only_reset(calls):
    async def rollout(t):
        return await play_three(t, lambda: Counter("stateless"))

    subject = TrajectoryUnderTest()
    with pytest.raises(RunStopped):
        perform(subject, rollout, stopping=killed_after(3))
    calls.clear()
    perform(subject, rollout)
    assert calls == ["reset", "step 3", "close"]


def test_a_refused_action_is_shown_and_has_no_reward():
    async def rollout(t):
        episode = await t.env(Counter())
        no = await episode.step("seven")
        yes = await episode.step("7")
        return no, yes, episode.rewards

    subject = TrajectoryUnderTest()
    no, yes, rewards = perform(subject, rollout)
    assert (no.text, no.error, no.ok) == ("say a number", "ToolSaysNo", False)
    assert yes.ok
    assert rewards == [0.0, 7.0]
    assert perform(subject, rollout)[0] == no


def test_the_seed_is_recorded_and_used_again():
    seeds = []

    class Seeded(Counter):
        def reset(self, *, seed):
            seeds.append(seed)
            return super().reset(seed=seed)

    subject = TrajectoryUnderTest(seed=None)

    async def rollout(t):
        episode = await t.env(Seeded())
        await episode.step("1")
        await episode.step("2")

    with pytest.raises(RunStopped):
        perform(subject, rollout, stopping=killed_after(2))
    perform(subject, rollout)
    assert len(seeds) == 2
    assert seeds[0] == seeds[1]


def test_the_runs_seed_gives_the_same_episode_and_samples_differ():
    async def rollout(t):
        return (await t.env(Counter())).observation.info["seed"]

    assert perform(TrajectoryUnderTest(seed=3), rollout) == perform(
        TrajectoryUnderTest(seed=3), rollout
    )
    subject = TrajectoryUnderTest(seed=3, samples=2)
    assert perform(subject, rollout, sample=0) != perform(subject, rollout, sample=1)


def test_a_given_seed_is_used():
    async def rollout(t):
        return (await t.env(Counter(), seed=1234)).observation.info["seed"]

    assert perform(TrajectoryUnderTest(), rollout) == 1234


def test_an_observation_in_the_conversation_is_stored_once():
    async def rollout(t):
        episode = await t.env(Counter())
        t.add(episode.observation)
        await t.generate()

    subject = TrajectoryUnderTest()
    perform(subject, rollout)
    history = asyncio.run(subject.history())
    assert history.generations[0].added == ("env:0",)
    again = TrajectoryUnderTest()
    assert perform(again, rollout) is None


@pytest.mark.parametrize("make", [Counter, AsyncCounter])
def test_tools_of_an_environment_act_in_it(make, calls):
    async def rollout(t):
        episode = await t.env(make())
        await t.tools(
            [
                call("add", '{"amount": 1}', call_id="a"),
                call("add", '{"amount": 2}', call_id="b"),
                call("add", '{"amount": -1}', call_id="c"),
            ],
            *episode.tools,
        )
        return [message.text for message in t.messages]

    subject = TrajectoryUnderTest()
    first = perform(subject, rollout)
    assert calls == ["reset", "add 1", "add 2", "add -1", "close"]
    assert first[2] == "only forward"
    assert perform(subject, rollout) == first


def test_tool_calls_are_done_again_in_order_to_bring_an_environment_back(calls):
    async def rollout(t):
        episode = await t.env(Counter())
        for n in (1, 2, 3):
            await t.tool(call("add", f'{{"amount": {n}}}', call_id=f"c{n}"), *episode.tools)
        return t.messages[-1].text

    undisturbed = perform(TrajectoryUnderTest(), rollout)
    subject = TrajectoryUnderTest()
    with pytest.raises(RunStopped):
        perform(subject, rollout, stopping=killed_after(3))
    calls.clear()
    assert perform(subject, rollout) == undisturbed
    assert calls == ["reset", "add 1", "add 2", "add 3", "close"]


def test_a_call_that_is_rejected_does_not_act_in_the_environment(calls):
    async def rollout(t):
        episode = await t.env(Counter())
        for number, arguments in enumerate(('{"amount": 1}', '{"sum": 2}', '{"amount": 3}')):
            await t.tool(call("add", arguments, call_id=f"c{number}"), *episode.tools)
        return t.messages[-1].text

    subject = TrajectoryUnderTest()
    perform(subject, rollout)
    assert calls == ["reset", "add 1", "add 3", "close"]
    steps = asyncio.run(subject.history()).in_order
    intents = [step for step in steps if isinstance(step, ToolIntent)]
    assert [intent.environment for intent in intents] == ["0", "", "0"]


def test_an_interrupted_call_runs_again_in_the_world_before_it(calls):
    """The tool's own contract is at most once; in a world that is put back, that does not bind."""

    class Dies(Counter):
        def add(self, amount: int) -> str:
            """Adds an amount."""
            observation = super().add(amount)
            if calls.count("add 2") == 1 and amount == 2:
                raise SystemExit("killed")
            return observation

    async def rollout(t):
        episode = await t.env(Dies())
        for n in (1, 2):
            await t.tool(call("add", f'{{"amount": {n}}}', call_id=f"c{n}"), *episode.tools)
        return t.messages[-1].text

    subject = TrajectoryUnderTest()
    with pytest.raises(EnvironmentBroken):
        perform(subject, rollout)
    history = asyncio.run(subject.history())
    assert isinstance(history.steps["2"], ToolIntent)
    assert "2" not in history.results
    outcome = perform(subject, rollout)
    assert calls[-4:] == ["reset", "add 1", "add 2", "close"]
    assert outcome == f"now {history.worlds and int(history.steps['0'].action) % 10 + 3}"


def test_turns_end_at_their_limit():
    async def rollout(t):
        t.limit(turns=2)
        while True:
            await t.generate()

    subject = TrajectoryUnderTest()
    with pytest.raises(Truncated, match="max_turns"):
        perform(subject, rollout)
    assert len(subject.oracle.requests) == 2
    with pytest.raises(Truncated, match="max_turns"):
        perform(subject, rollout)
    assert len(subject.oracle.requests) == 2


def test_the_last_reply_ends_where_the_token_budget_does():
    async def rollout(t):
        t.limit(tokens=15)
        await t.generate()
        await t.generate()
        await t.generate()

    subject = TrajectoryUnderTest(Oracle(lambda request: "0123456789"))
    with pytest.raises(Truncated, match="token_budget"):
        perform(subject, rollout)
    assert [request.sampling.max_tokens for request in subject.oracle.requests] == [15, 4]


def test_time_is_added_up_from_recorded_steps_and_survives_a_resume():
    clock = ManualClock()

    class Slow(AsyncCounter):
        async def step(self, action):
            await clock.advance(60)
            return await super().step(action)

    async def rollout(t):
        t.limit(seconds=100)
        episode = await t.env(Slow())
        for n in range(5):
            await t.generate()
            await episode.step(str(n))

    subject = TrajectoryUnderTest()
    with pytest.raises(RunStopped):
        perform(subject, rollout, stopping=killed_after(4), clock=clock)
    asyncio.run(clock.advance(10_000))  # Downtime is not counted.
    with pytest.raises(Truncated, match="time_budget"):
        perform(subject, rollout, clock=clock)
    assert len(asyncio.run(subject.history()).environment_steps) == 2
    with pytest.raises(Truncated, match="time_budget"):
        perform(subject, rollout, clock=clock)


@pytest.mark.parametrize("limit", [{"turns": 0}, {"tokens": -1}, {"seconds": 0}])
def test_a_limit_of_nothing_is_refused(limit):
    async def rollout(t):
        t.limit(**limit)

    with pytest.raises(UsageError, match="must be more than 0"):
        perform(TrajectoryUnderTest(), rollout)
