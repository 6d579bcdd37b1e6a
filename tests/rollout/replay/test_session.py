"""Replay: what is recorded is returned, never done again (I2), or the rollout forks (I9)."""

import asyncio

import pytest

from holdfast.journal import open_journal
from holdfast.records.errors import Diverged, RunStopped, UsageError
from holdfast.records.sampling import Sampling
from holdfast.rollout.replay.run_context import OnDivergence
from support.rollout.stage import Oracle, TrajectoryUnderTest, call


def run(subject: TrajectoryUnderTest, rollout, **options):
    return asyncio.run(subject.perform(rollout, **options))


def counted(effects: list[str]):
    async def look_up(word: str) -> str:
        effects.append(word)
        return f"{word} means {len(effects)}"

    return look_up


def test_replay_gives_the_same_results_and_does_nothing_again(tmp_path):
    effects: list[str] = []

    async def rollout(t):
        t.add(*t.task.messages)
        first = await t.generate(max_tokens=16)
        value = await t.value(lambda: effects.append("value") or [1, 2.5, "x"])
        message = await t.tool(call("look_up", '{"word": "kelp"}'), counted(effects))
        return first, value, message, await t.generate(), list(t.messages)

    async def main():
        journal = open_journal(tmp_path / "journal.db")
        try:
            subject = TrajectoryUnderTest(journal=journal)
            live = await subject.perform(rollout)
            oracle, done = list(subject.oracle.request_ids), list(effects)
            replayed = await subject.perform(rollout)
            return live, replayed, oracle == subject.oracle.request_ids, done == effects
        finally:
            await journal.close()

    live, replayed, no_request, no_effect = asyncio.run(main())
    assert live == replayed
    assert live[0].ids == replayed[0].ids
    assert live[0].logprobs == replayed[0].logprobs
    assert live[0].finish_reason == "stop"
    assert no_request
    assert no_effect


def test_what_follows_the_recorded_steps_is_live():
    subject = TrajectoryUnderTest()

    async def rollout(t, turns):
        t.add("go")
        return [(await t.generate()).text for _ in range(turns)]

    before = run(subject, lambda t: rollout(t, 2))
    after = run(subject, lambda t: rollout(t, 3))
    assert after[:2] == before
    assert subject.oracle.request_ids == ["run/t/0/0", "run/t/0/1", "run/t/0/2"]


def _asks(text="go", *, word="a", sampling=None, kind="tool"):
    async def rollout(t):
        t.add(text)
        await t.generate(**(sampling or {}))
        if kind == "value":
            await t.value(lambda: 1, name="clock")
        else:
            await t.tool(call("look_up", f'{{"word": "{word}"}}'), counted([]))
        await t.generate()

    return rollout


CHANGES = {
    "prompt": (_asks("went"), "0", ["-go", "+went"], 2),
    "tool arguments": (_asks(word="b"), "1", ['"a"', '"b"'], 1),
    "kind": (_asks(kind="value"), "1", ["look_up", "clock"], 1),
    "sampling": (
        _asks(sampling={"temperature": 0.5}),
        "0",
        ["temperature: recorded 1.0", "0.5"],
        2,
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_divergence_forks_at_its_place_and_tells_both_sides(change):
    changed, path, messages, generated = CHANGES[change]
    subject = TrajectoryUnderTest()
    run(subject, _asks())
    run(subject, changed)
    history = asyncio.run(subject.history())
    (fork,) = history.forks
    assert fork.path == path
    assert all(part in fork.difference for part in messages), fork.difference
    assert len(subject.oracle.requests) == 2 + generated
    run(subject, changed)
    assert len(subject.oracle.requests) == 2 + generated, "the fork itself is replayed"


@pytest.mark.parametrize("change", CHANGES)
def test_divergence_fails_where_the_policy_says_so_and_cannot_be_swallowed(change):
    changed, path, messages, _ = CHANGES[change]
    subject = TrajectoryUnderTest()
    run(subject, _asks())

    async def swallowing(t):
        try:
            await changed(t)
        except Diverged as error:
            with pytest.raises(Diverged):
                await t.value(lambda: 1)
            return str(error)

    message = run(subject, swallowing, on_divergence=OnDivergence.FAIL)
    assert f"at step {path} " in message
    assert all(part in message for part in messages)
    assert not asyncio.run(subject.history()).forks
    assert len(subject.oracle.requests) == 2


def test_other_default_sampling_is_a_divergence_too():
    subject = TrajectoryUnderTest()
    run(subject, _asks())
    run(subject, _asks(), sampling=Sampling(max_tokens=7))
    assert "max_tokens" in asyncio.run(subject.history()).forks[0].difference


def test_a_rollout_that_ends_before_its_recorded_steps_forks_there():
    subject = TrajectoryUnderTest()
    run(subject, _asks())

    async def shorter():
        session = await subject.session()
        from holdfast.rollout.context import Rollout

        t = Rollout(session)
        t.add("go")
        await t.generate()
        await session.log.cut_untaken()
        return await subject.history()

    history = asyncio.run(shorter())
    assert [fork.path for fork in history.forks] == ["1"]
    assert list(history.steps) == ["0"]


def _branching(*texts, order=(0, 1)):
    async def rollout(t):
        t.add("root")
        await t.generate()
        turns = [asyncio.Event() for _ in range(len(texts) + 1)]
        turns[0].set()

        async def branch(t, index):
            await turns[order[index]].wait()
            t.add(texts[index])
            message = [(await t.generate()).text, (await t.generate()).text]
            turns[order[index] + 1].set()
            return message

        return await t.branch(*(lambda t, i=index: branch(t, i) for index in range(len(texts))))

    return rollout


def test_branches_replay_whatever_the_order_in_which_they_committed():
    subject = TrajectoryUnderTest()
    first = run(subject, _branching("a", "b", order=(0, 1)))
    assert run(subject, _branching("a", "b", order=(1, 0))) == first
    assert len(subject.oracle.requests) == 5
    assert sorted(asyncio.run(subject.history()).steps) == ["0", "1.0.0", "1.0.1", "1.1.0", "1.1.1"]


def test_a_fork_inside_one_branch_leaves_its_sibling_alone():
    subject = TrajectoryUnderTest()
    first = run(subject, _branching("a", "b"))
    again = run(subject, _branching("a", "changed"))
    assert again[0] == first[0]
    assert subject.oracle.request_ids[5:] == ["run/t/0/1.1.0", "run/t/0/1.1.1"]
    (fork,) = asyncio.run(subject.history()).forks
    assert fork.path == "1.1.0"


def test_a_sub_rollout_has_its_own_conversation_and_key_space():
    subject = TrajectoryUnderTest()

    async def inner(t):
        t.add("inner")
        return (await t.generate()).text

    async def rollout(t):
        t.add("outer")
        await t.generate()
        value = await t.sub(inner)
        await t.generate()
        return value, len(t.messages)

    live = run(subject, rollout)
    assert live == run(subject, rollout)
    assert subject.oracle.request_ids == ["run/t/0/0", "run/t/0/1.0.0", "run/t/0/2"]
    assert live[1] == 3, "what a sub-rollout says stays in it"


def test_a_failing_branch_ends_its_siblings_and_keeps_its_error_and_cause():
    subject, ended = TrajectoryUnderTest(), []

    async def bad(t):
        await t.value(lambda: 1, name="v")
        raise KeyError("root") from ValueError("why")

    async def slow(t):
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    async def main():
        session = await subject.session()
        from holdfast.rollout.context import Rollout

        try:
            await Rollout(session).branch(slow, bad)
        except KeyError as error:
            return error, session.state.step_of(error), len(asyncio.all_tasks())

    error, step, tasks = asyncio.run(main())
    assert isinstance(error.__cause__, ValueError)
    assert (step, ended, tasks) == ("0.1.0", [True], 1)


@pytest.mark.parametrize("exit_with", [SystemExit(3), KeyboardInterrupt()])
def test_a_branch_that_exits_does_not_end_the_process(exit_with):
    async def bad(t):
        raise exit_with

    with pytest.raises(RuntimeError, match=type(exit_with).__name__):
        run(TrajectoryUnderTest(), lambda t: t.branch(bad))


def test_a_stopping_run_replays_freely_and_stops_at_the_first_live_step():
    subject = TrajectoryUnderTest()
    run(subject, lambda t: _turns(t, 2))
    assert len(run(subject, lambda t: _turns(t, 2), stopping=lambda: True)) == 2
    with pytest.raises(RunStopped):
        run(subject, lambda t: _turns(t, 3), stopping=lambda: True)
    assert len(subject.oracle.requests) == 2


def test_a_stopping_run_does_not_fork():
    subject = TrajectoryUnderTest()
    run(subject, _asks())
    with pytest.raises(RunStopped):
        run(subject, _asks("went"), stopping=lambda: True)
    assert not asyncio.run(subject.history()).forks


async def _turns(t, turns):
    t.add("go")
    return [(await t.generate()).text for _ in range(turns)]


def test_seeds_depend_on_run_seed_task_sample_and_step_alone():
    def seeds(seed, sample=0):
        subject = TrajectoryUnderTest(seed=seed, samples=2)
        run(subject, lambda t: _turns(t, 2), sample=sample)
        return [request.seed for request in subject.oracle.requests]

    assert seeds(1) == seeds(1)
    assert len({*seeds(1), *seeds(2), *seeds(1, sample=1)}) == 6
    assert seeds(None) == [None, None]


@pytest.mark.parametrize(
    ("function", "value"),
    [
        (lambda: (1, "a", (2.5, None)), [1, "a", [2.5, None]]),
        (lambda: {"k": b"bytes", 3: {4}}, {"k": b"bytes", 3: [4]}),
        (lambda: asyncio.sleep(0, "awaited"), "awaited"),
    ],
)
def test_a_live_value_is_what_a_replayed_one_is(function, value):
    subject = TrajectoryUnderTest()

    async def rollout(t):
        return await t.value(function, name="v")

    assert run(subject, rollout) == value
    assert run(subject, rollout) == value


@pytest.mark.parametrize("bad", [object(), 1 << 80, "\ud800", lambda: 1])
def test_a_value_that_cannot_be_recorded_says_so(bad):
    with pytest.raises(TypeError, match=r"value 'mine' returned .* cannot be recorded"):
        run(TrajectoryUnderTest(), lambda t: t.value(lambda: bad, name="mine"))


@pytest.mark.parametrize("bad", [{"max_tokens": 2.5}, {"max_tokens": 0}, {"stop": 3}])
def test_sampling_that_could_not_be_read_again_is_refused_before_it_is_used(bad):
    subject = TrajectoryUnderTest()
    with pytest.raises(UsageError, match=next(iter(bad))):
        run(subject, lambda t: t.generate(**bad))
    assert not subject.oracle.requests


def test_one_stop_string_is_one_stop_string():
    subject = TrajectoryUnderTest()
    run(subject, lambda t: t.generate(stop="abc"))
    assert subject.oracle.requests[0].sampling.stop == ("abc",)
    assert asyncio.run(subject.history()).generations[0].sampling.stop == ("abc",)


def test_a_message_with_an_unknown_role_is_refused_before_anything_is_sampled():
    from holdfast.records.message import Message

    async def rollout(t):
        t.add(Message("bot", "hi"))
        await t.generate()

    subject = TrajectoryUnderTest()
    with pytest.raises(Exception, match="role is 'bot'; the roles are"):
        run(subject, rollout)
    assert not subject.oracle.requests


async def test_a_step_of_a_task_left_behind_by_an_attempt_records_nothing():
    subject = TrajectoryUnderTest(Oracle(lambda request: asyncio.sleep(0.01, "late")))
    session = await subject.session()
    from holdfast.rollout.context import Rollout

    orphan = asyncio.create_task(Rollout(session).generate())
    await asyncio.sleep(0)
    await session.conclude()
    with pytest.raises(RunStopped, match="attempt is over"):
        await orphan
    assert not (await subject.history()).steps
