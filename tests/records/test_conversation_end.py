"""What a rollout adds after its last reply is part of the conversation: a scorer reads it."""

import pytest

import holdfast
from holdfast.records.message import system, user
from holdfast.records.view import TrajectoryView
from support.engine.local_run import LocalRun
from support.evaluation.gym_runs import yard_key


def conversation_of(rollout) -> list[tuple[str, str]]:
    local = LocalRun()
    local.run(rollout)
    (history,) = local.histories().values()
    view = TrajectoryView(yard_key(local), local.tasks[0], history)
    return [(message.role.value, message.content) for message in view.messages]


async def sums_up(t: holdfast.Rollout) -> None:
    t.add(*t.task.messages)
    await t.generate()
    t.add(user("TESTS: 3 passed, 1 failed"))
    t.messages.append({"role": "user", "content": "as a dict"})  # type: ignore[arg-type]


async def sums_up_and_is_cut_short(t: holdfast.Rollout) -> None:
    await sums_up(t)
    t.truncate("too long")


async def never_generates(t: holdfast.Rollout) -> None:
    t.add(system("Nothing to do."), *t.task.messages)


@pytest.mark.parametrize("rollout", [sums_up, sums_up_and_is_cut_short])
def test_what_was_added_last_is_its_end(rollout) -> None:
    roles = conversation_of(rollout)
    assert [role for role, _ in roles] == ["user", "assistant", "user", "user"]
    assert [text for _, text in roles][2:] == ["TESTS: 3 passed, 1 failed", "as a dict"]


def test_a_conversation_without_a_reply_is_what_was_added() -> None:
    assert [role for role, _ in conversation_of(never_generates)] == ["system", "user"]


async def writes_anew(t: holdfast.Rollout) -> None:
    t.add(*t.task.messages)
    await t.generate()
    t.messages.clear()
    t.add("something else")


def test_one_that_was_written_anew_and_not_generated_from_is_as_it_was() -> None:
    assert [role for role, _ in conversation_of(writes_anew)] == ["user", "assistant"]


async def hands_in_nonsense(t: holdfast.Rollout) -> None:
    t.add(*t.task.messages)
    await t.generate()
    t.messages.append(5)  # type: ignore[arg-type]


def test_what_is_no_message_is_said_to_be_none() -> None:
    local = LocalRun()
    local.run(hands_in_nonsense)
    (history,) = local.histories().values()
    assert "t.messages holds messages, not" in history.failures[-1].root
