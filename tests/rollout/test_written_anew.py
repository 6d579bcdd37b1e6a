"""`t.messages` is the rollout's own list: dicts may stand anywhere in it, after any turn."""

import pytest

import holdfast
from holdfast.records.message import user
from support.engine.local_run import LocalRun

SUMMARY = {"role": "user", "content": "What was said so far, in short."}


def replaced(t: holdfast.Rollout) -> None:
    t.messages[:] = [SUMMARY]  # type: ignore[list-item]


def assigned(t: holdfast.Rollout) -> None:
    t.messages = [SUMMARY]  # type: ignore[list-item]


def last_one_changed(t: holdfast.Rollout) -> None:
    t.messages[-1] = SUMMARY  # type: ignore[call-overload]


def put_first(t: holdfast.Rollout) -> None:
    t.messages.insert(0, {"role": "system", "content": "Be brief."})  # type: ignore[arg-type]


def as_a_message(t: holdfast.Rollout) -> None:
    t.messages[:] = [user("What was said so far, in short.")]


@pytest.mark.parametrize("change", [replaced, assigned, last_one_changed, put_first, as_a_message])
def test_dicts_in_a_history_that_was_written_anew_are_messages(change) -> None:
    async def rollout(t: holdfast.Rollout) -> None:
        t.add(*t.task.messages)
        await t.generate()
        change(t)
        t.add("Go on.")
        await t.generate()

    local = LocalRun()
    local.run(rollout)
    (history,) = local.histories().values()
    assert history.failures == []
    assert len(history.generations) == 2


def test_what_is_no_message_is_named_wherever_it_stands() -> None:
    async def rollout(t: holdfast.Rollout) -> None:
        t.add(*t.task.messages)
        await t.generate()
        t.messages.insert(0, "Be brief.")  # type: ignore[arg-type]
        await t.generate()

    local = LocalRun()
    local.run(rollout)
    (history,) = local.histories().values()
    assert "t.messages holds messages, not str 'Be brief.'" in history.failures[-1].root
