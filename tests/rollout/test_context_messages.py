"""Dicts in the conversation: they are recorded as messages, and replayed as them."""

import asyncio

from holdfast.records.message import Message, Role, user
from support.rollout.stage import Oracle, TrajectoryUnderTest

ASK = {"role": "user", "content": "go"}


def test_dicts_are_taken_where_messages_are_and_replayed_as_them():
    policy = Oracle(lambda request: "yes")
    subject = TrajectoryUnderTest(policy)

    async def solve(t):
        t.add({"role": "system", "content": "Be short."}, ASK)
        await t.generate()
        t.messages.append({"role": "user", "content": "again"})
        await t.generate()
        return [message.text for message in t.messages], t.messages[0]

    texts, first = asyncio.run(subject.perform(solve))
    assert texts == ["Be short.", "go", "yes", "again", "yes"]
    assert first == Message(Role.SYSTEM, "Be short.")
    count = len(policy.requests)
    again, _ = asyncio.run(subject.perform(solve))
    assert again == texts
    assert len(policy.requests) == count, "nothing is sampled twice"
    assert user("go") == Message(Role.USER, "go")
