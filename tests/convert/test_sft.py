"""Supervised fine-tuning: conversations of valid outcomes."""

import asyncio

import pytest
from msgspec import structs

from holdfast.convert import to_sft
from holdfast.records.errors import UsageError
from holdfast.records.history import History
from holdfast.records.message import FunctionCall, ToolCall, assistant
from holdfast.records.step import Finished
from holdfast.records.trajectory import Status, TrajectoryKey
from holdfast.records.view import TrajectoryView
from support.records import generated, make_tasks, started
from support.rollout.stage import TrajectoryUnderTest


def view(
    status: Status = Status.COMPLETED, reward: float | None = 1.0, **reply: object
) -> TrajectoryView:
    (task,) = make_tasks("a")
    message = structs.replace(assistant("the answer"), **reply)
    turn = generated("0", message=message, added=("task:0",))
    history = History([started(), turn, Finished(status, "", reward, 2.0)])
    return TrajectoryView(TrajectoryKey("run", "a", 0), task, history)


def test_a_conversation_is_its_messages() -> None:
    (row,) = to_sft([view()])
    assert row["messages"] == [
        {"role": "user", "content": "do a"},
        {"role": "assistant", "content": "the answer"},
    ]
    assert (row["task"], row["reward"]) == ("a", 1.0)


def test_or_what_was_there_and_the_rest() -> None:
    (row,) = to_sft([view()], layout="prompt_completion")
    assert row["prompt"] == [{"role": "user", "content": "do a"}]
    assert row["completion"] == [{"role": "assistant", "content": "the answer"}]


def test_only_valid_outcomes_that_earned_enough() -> None:
    views = [view(Status.FAILED), view(reward=0.0), view(reward=None), view(Status.TRUNCATED)]
    assert len(to_sft(views)) == 3
    assert len(to_sft(views, min_reward=0.5)) == 1


def test_arguments_are_a_mapping_or_what_the_model_wrote() -> None:
    calls = (
        ToolCall("1", FunctionCall("add", '{"a": 1}')),
        ToolCall("2", FunctionCall("add", "{broken")),
    )
    (row,) = to_sft([view(content=None, tool_calls=calls)])
    message = row["messages"][1]  # type: ignore[index]
    assert [call["function"]["arguments"] for call in message["tool_calls"]] == [
        {"a": 1},
        "{broken",
    ]
    assert message["content"] == ""


def test_a_layout_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="prompts"):
        to_sft([view()], layout="prompts")


# --- the tools that the model was shown


def schema(name: str) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


def shown(rollout, *task_tools: dict[str, object], times: int = 1) -> TrajectoryView:
    """The trajectory, performed that often: each time but the first, it is replayed."""
    (task,) = make_tasks("a")
    subject = TrajectoryUnderTest(task=structs.replace(task, tools=task_tools))
    for _ in range(times):
        asyncio.run(subject.perform(rollout))
    history = asyncio.run(subject.history())
    history.take(Finished(Status.COMPLETED, "", 1.0, 2.0))
    return TrajectoryView(TrajectoryKey("run", "a", 0), subject.task, history)


async def search_then_answer(t) -> None:
    t.add(*t.task.messages)
    await t.generate(tools=[schema("search"), schema("open")])
    t.add("go on")
    await t.generate(tools=[schema("search"), schema("open")])
    t.add("answer now")
    await t.generate()


@pytest.mark.parametrize("times", [1, 2])
def test_the_tools_are_those_that_the_rollout_showed(times: int) -> None:
    view = shown(search_then_answer, schema("of the task"), times=times)
    (row,) = to_sft([view])
    assert row["tools"] == [schema("search"), schema("open")]
    first, second, last = view.history.generations
    assert (first.tools, second.tools, last.tools) == (first.tools, None, "[]")
    assert first.tools is not None, "recorded once, where they are first shown"


def test_those_of_the_task_are_named_where_they_were_shown_and_not_otherwise() -> None:
    async def with_them(t) -> None:
        t.add(*t.task.messages)
        await t.generate(tools=list(t.task.tools))

    async def without(t) -> None:
        t.add(*t.task.messages)
        await t.generate()

    view = shown(with_them, schema("of the task"))
    assert to_sft([view])[0]["tools"] == [schema("of the task")]
    assert view.history.generations[0].tools is None, "the task has them already"
    assert "tools" not in to_sft([shown(without, schema("of the task"))])[0]


def test_each_conversation_has_its_own() -> None:
    async def branching(t) -> None:
        async def search(branch) -> None:
            branch.add("search")
            await branch.generate(tools=[schema("search")])

        t.add(*t.task.messages)
        await t.branch(search)
        await t.generate(tools=[schema("open")])

    assert to_sft([shown(branching)])[0]["tools"] == [schema("open")]


def test_a_record_from_before_they_were_recorded_has_those_of_its_task() -> None:
    (task,) = make_tasks("a")
    task = structs.replace(task, tools=(schema("of the task"),))
    history = History([started(), generated("0", added=("task:0",))])
    history.take(Finished(Status.COMPLETED, "", 1.0, 2.0))
    (row,) = to_sft([TrajectoryView(TrajectoryKey("run", "a", 0), task, history)])
    assert row["tools"] == [schema("of the task")]
