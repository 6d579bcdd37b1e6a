"""What a commit may name: groups that were taken, once, and no step of the past."""

import asyncio

import pytest

from holdfast.journal.ledger import UNKNOWN, DeliveryState, KnownGroup, fresh_tasks
from holdfast.journal.sqlite.journal import MemoryJournal
from holdfast.journal.types import Consumer
from holdfast.records.errors import UsageError
from support.records import consuming, spec

TAKEN: KnownGroup = (1, DeliveryState.TAKEN, None, "")
IN_STEP_3: KnownGroup = (2, DeliveryState.TAKEN, 3, "")
DISMISSED: KnownGroup = (3, DeliveryState.DISMISSED, None, "short")


@pytest.fixture
def consumer() -> Consumer:
    async def made() -> Consumer:
        journal = MemoryJournal()
        return await consuming(journal, await journal.create_run(spec(), (), sealed=False))

    return asyncio.run(made())


def test_what_is_in_the_step_already_is_not_put_there_again(consumer):
    assert fresh_tasks(consumer, 3, {"a": TAKEN, "b": IN_STEP_3}, committed=2) == [1]
    assert fresh_tasks(consumer, 3, {"b": IN_STEP_3}, committed=3) == []


@pytest.mark.parametrize("group", [UNKNOWN, DISMISSED, IN_STEP_3])
def test_what_was_not_taken_or_is_in_another_step_is_refused(consumer, group):
    with pytest.raises(UsageError, match="does not have 'b'"):
        fresh_tasks(consumer, 4, {"a": TAKEN, "b": group}, committed=None)


def test_a_step_of_the_past_takes_nothing_new(consumer):
    with pytest.raises(UsageError, match="is at step 3"):
        fresh_tasks(consumer, 3, {"a": TAKEN}, committed=3)
