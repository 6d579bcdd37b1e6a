"""Dicts in the conversation: they are recorded as messages, and replayed as them."""

import asyncio

from holdfast.records.message import Message, Role, user
from support.rollout.stage import Oracle, Play

ASK = {"role": "user", "content": "go"}


def test_dicts_are_taken_where_messages_are_and_replayed_as_them():
    policy = Oracle(lambda request: "yes")
    play = Play(policy)

    async def solve(t):
        t.add({"role": "system", "content": "Be short."}, ASK)
        await t.generate()
        t.messages.append({"role": "user", "content": "again"})
        await t.generate()
        return [message.text for message in t.messages], t.messages[0]

    texts, first = asyncio.run(play.perform(solve))
    assert texts == ["Be short.", "go", "yes", "again", "yes"]
    assert first == Message(Role.SYSTEM, "Be short.")
    asked = len(policy.requests)
    again, _ = asyncio.run(play.perform(solve))
    assert again == texts
    assert len(policy.requests) == asked, "nothing is sampled twice"
    assert user("go") == Message(Role.USER, "go")
