"""Every journal keeps which weights each replica has."""

import pytest
from msgspec import structs

from holdfast.journal.sql.journal import Journal
from holdfast.journal.sql.replicas import KEPT
from holdfast.records.errors import LeaseLost, UsageError
from holdfast.records.samples.replica_weights import ReplicaWeights, WeightState
from support.conformance.journals import Check, every_journal  # noqa: F401 - the fixture
from support.records import consuming, make_tasks, spec

SENDING = ReplicaWeights("http://a", WeightState.SENDING, "1", "step-1", "policy")
CHECKED = structs.replace(SENDING, state=WeightState.CHECKED)


def test_records_of_each_replica_come_back_in_their_order(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(), make_tasks("a"))
        other = structs.replace(SENDING, replica="http://b")
        following = structs.replace(SENDING, version="step-2", number=2)
        for record in (SENDING, other, CHECKED, following):
            assert await journal.note_weights(run, record)
        assert await journal.replica_weights(run) == [CHECKED, following, other]

    check(body)


def test_what_somebody_else_has_noted_meanwhile_is_not_overwritten(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(), make_tasks("a"))
        wanted = structs.replace(SENDING, state=WeightState.WANTED, number=2)
        for record in (SENDING, wanted):
            assert await journal.note_weights(run, record)
        assert not await journal.note_weights(run, CHECKED)
        assert not await journal.note_weights(run, structs.replace(CHECKED, number=4))
        assert await journal.replica_weights(run) == [SENDING, wanted]

    check(body)


def test_a_trainer_that_lost_its_lease_notes_nothing(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(), make_tasks("a"))
        trainer = await consuming(journal, run)
        assert await journal.note_weights(run, SENDING, consumer=trainer)
        await journal.unsubscribe(trainer)
        with pytest.raises(LeaseLost):
            await journal.note_weights(run, CHECKED, consumer=trainer)
        assert await journal.replica_weights(run) == [SENDING]

    check(body)


def test_old_records_and_those_of_a_deleted_run_go(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(), make_tasks("a"))
        for number in range(1, KEPT + 3):
            await journal.note_weights(run, structs.replace(CHECKED, number=number))
        found = await journal.replica_weights(run)
        assert [record.number for record in found] == list(range(3, KEPT + 3))
        await journal.delete_run(run)
        assert await journal.replica_weights(run) == []
        with pytest.raises(UsageError, match="deleted"):
            await journal.note_weights(run, CHECKED)

    check(body)
