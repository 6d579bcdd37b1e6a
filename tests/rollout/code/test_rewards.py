"""A rollout is said to give no reward only where its source shows that it gives none."""

import functools

import pytest

import holdfast
from holdfast.rollout.code.rewards import may_reward
from holdfast.rollout.processors.processor import (
    FunctionProcessor,
    RolloutProcessor,
    SingleTurnRolloutProcessor,
)


async def plain(t):
    t.add(*t.task.messages)
    reply = await t.generate(max_tokens=4)
    if not reply.text:
        return
    await t.value("length", lambda: len(reply.text))
    t.truncate("done")


async def returns(t):
    await t.generate()
    return 1.0


async def plays(t):
    episode = await t.env(holdfast.Environment())
    await t.act(episode, "left")


async def helps(t):
    await plays(t)


async def branches(t):
    await t.branch(plays, plays)


async def keeps(t):
    kept = [t]
    await plays(kept[0])


async def raises(t):
    raise holdfast.Truncated("too long", returned=0.5)


def counted(function):
    @functools.wraps(function)
    async def call(t):
        return await function(t)

    return call


class Callable:
    async def __call__(self, t):
        await t.generate()


class Rows(RolloutProcessor):
    def __call__(self, tasks, config):
        return []


class Silent(RolloutProcessor):
    async def rollout(self, t):
        await t.generate()


def test_a_rollout_that_only_generates_gives_no_reward():
    assert not may_reward(plain)
    assert not FunctionProcessor(plain).may_reward
    assert not SingleTurnRolloutProcessor().may_reward
    assert not Silent().may_reward


@pytest.mark.parametrize(
    "rollout",
    [returns, plays, helps, branches, keeps, raises, counted(plain), Callable(), len,
     functools.partial(plain), eval("lambda t: None")],
    ids=lambda rollout: getattr(rollout, "__name__", "object"),
)  # fmt: skip
def test_whatever_else_may_give_one(rollout):
    assert may_reward(rollout)


def test_processors_of_rows_may_give_one():
    assert Rows().may_reward
