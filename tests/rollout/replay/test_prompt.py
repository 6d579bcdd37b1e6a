"""Prompts (I3): what the engine sampled stays what it is, or the break is seen."""

import asyncio

import pytest

from holdfast.records.conversation import conversation
from holdfast.records.history import stream_of
from holdfast.records.message import Role, system, user
from holdfast.records.samples.sample import samples_of
from holdfast.records.step import Finished
from holdfast.records.task import Task
from holdfast.records.trajectory import Status
from holdfast.records.view import TrajectoryView
from support.rollout.stage import Oracle, TrajectoryUnderTest, call, text_of

CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


def add(a: int) -> int:
    return a + 1


def performed(rollout, *, oracle=None, task=None):
    """The trajectory, its finished history and what the rollout returned."""
    subject = TrajectoryUnderTest(oracle, task=task)
    outcome = asyncio.run(subject.perform(rollout))
    history = asyncio.run(subject.history())
    history.take(Finished(Status.COMPLETED, "", None, 0.0))
    return subject, history, outcome


def samples(history):
    return samples_of(history, task="t", group="t", sample=0)


async def with_tools(t):
    t.add(*t.task.messages)
    for _ in range(3):
        reply = await t.generate(tools=[add])
        for tool_call in reply.tool_calls:
            await t.tool(tool_call, add)
    return list(t.messages)


def test_each_prompt_begins_with_the_prompt_and_completion_before_it():
    subject, history, _ = performed(with_tools, oracle=Oracle(lambda request: f"so {CALL}"))
    prompts = [list(request.prompt) for request in subject.oracle.requests]
    for turn in range(2):
        stream = prompts[turn] + list(subject.oracle.requests[turn].prompt[:0])
        stream += [*f"so {CALL}".encode(), 257]
        assert prompts[turn + 1][: len(stream)] == stream
        assert prompts[turn + 1][len(stream)] != stream[-1], "a reply ends once"
    (sample,) = samples(history)
    assert sample.token_ids[: len(prompts[2])] == prompts[2]
    assert sum(sample.loss_mask) == history.sampled_tokens
    assert list(stream_of(history, "4")) == sample.token_ids


def test_a_completion_cut_by_its_length_is_continued_as_it_was_sampled():
    async def rollout(t):
        t.add("go")
        reply = await t.generate(max_tokens=3)
        t.add("more")
        await t.generate()
        return reply

    subject, _, reply = performed(rollout, oracle=Oracle(lambda request: "abcdef"))
    assert reply.finish_reason == "length"
    first, second = (list(request.prompt) for request in subject.oracle.requests)
    assert second[: len(first) + 3] == first + reply.ids


def test_call_ids_are_given_and_are_the_same_on_replay():
    subject, _, messages = performed(with_tools, oracle=Oracle(lambda request: f"{CALL}{CALL}"))
    ids = [tool_call.id for message in messages for tool_call in message.tool_calls]
    assert len(set(ids)) == 6
    again = asyncio.run(subject.perform(with_tools))
    assert again == messages


def _rewriting(change):
    async def rollout(t):
        t.add(*t.task.messages)
        await t.generate()
        t.add("second")
        await t.generate(**(change(t) or {}))
        return list(t.messages)

    return rollout


def _rewrite(t):
    t.messages[0] = user("something else")


def _drop(t):
    del t.messages[1]


def _tools(t):
    return {"tools": [add]}


@pytest.mark.parametrize("change", [_rewrite, _drop, _tools])
def test_a_rewritten_past_is_a_visible_break_and_every_sampled_token_is_trained_once(change):
    _, history, messages = performed(_rewriting(change))
    first, second = history.generations
    assert first.prefix_break == ""
    assert "changed" in second.prefix_break
    both = samples(history)
    assert len(both) == 2
    assert sum(sum(sample.loss_mask) for sample in both) == history.sampled_tokens
    assert both[1].token_ids == list(stream_of(history, "1"))
    assert conversation(history, TrajectoryUnderTest().task) == messages


def test_a_break_is_replayed_like_anything_else():
    subject, _, messages = performed(_rewriting(_rewrite))
    assert asyncio.run(subject.perform(_rewriting(_rewrite))) == messages
    assert len(subject.oracle.requests) == 2


def test_branches_share_their_beginning_and_train_it_once():
    async def rollout(t):
        t.add("root")
        await t.generate()

        async def aside(t):
            t.add("aside")
            await t.generate()

        await t.branch(aside, aside)

    _, history, _ = performed(rollout)
    both = samples(history)
    assert len(both) == 2
    assert sum(sum(sample.loss_mask) for sample in both) == history.sampled_tokens


def test_messages_are_recorded_once_and_resolve_to_the_whole_conversation():
    task = Task(id="t", messages=(system("be brief"), user("x" * 1000)))
    subject, history, messages = performed(
        with_tools, oracle=Oracle(lambda request: f"so {CALL}"), task=task
    )
    assert [message.role for message in messages].count(Role.TOOL) == 3
    assert TrajectoryView(None, task, history).messages == messages
    added = [item for step in history.generations for item in step.added]
    assert added == ["task:0", "task:1", "tool:1", "tool:3"]
    assert "x" * 1000 in text_of(subject.oracle.requests[0].prompt)


def test_references_resolve_after_a_break_that_keeps_replies_and_tool_results():
    async def rollout(t):
        t.add(*t.task.messages)
        reply = await t.generate(tools=[add])
        await t.tool(reply.tool_calls[0], add)
        t.messages.insert(0, system("new rules"))
        await t.generate(tools=[add])
        return list(t.messages)

    _, history, messages = performed(rollout, oracle=Oracle(lambda request: f"so {CALL}"))
    last = history.generations[-1]
    assert last.added == (system("new rules"), "task:0", "reply:0", "tool:1")
    assert conversation(history, TrajectoryUnderTest().task) == messages


def test_a_tool_result_that_the_rollout_dropped_stays_dropped():
    async def rollout(t):
        t.add(*t.task.messages)
        reply = await t.generate(tools=[add])
        await t.tool(reply.tool_calls[0], add)
        t.messages[:] = [user("a summary")]
        await t.generate()
        return list(t.messages)

    replies = iter([f"so {CALL}", "done"])
    _, history, messages = performed(rollout, oracle=Oracle(lambda request: next(replies)))
    assert conversation(history, TrajectoryUnderTest().task) == messages


def test_a_branch_resolves_its_messages_from_the_shared_beginning():
    async def rollout(t):
        t.add(*t.task.messages)
        reply = await t.generate()
        await t.tool(call("add", '{"a": 1}'), add)

        async def aside(t):
            t.add("aside")
            await t.generate()
            return list(t.messages)

        assert reply.text
        return (await t.branch(aside))[0]

    _, history, messages = performed(rollout)
    assert conversation(history, TrajectoryUnderTest().task, history.generations[-1]) == messages
    assert conversation(history, TrajectoryUnderTest().task) == messages[:2]
