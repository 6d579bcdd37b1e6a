"""A trainer that is killed, frozen, taken over and restored at any moment trains each group once.

Hypothesis makes up what happens. The optimizer's history is what the newest checkpoint holds:
whatever happened, each admitted group ends in it once, or is dismissed, never both, and none is
forgotten.
"""

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec import Struct, field

from holdfast.journal.damage.check import check
from holdfast.journal.lease_clock import Instant
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.journal.types import Claim, Consumer, GroupEnd
from holdfast.records.errors import ConsumerHeld, LeaseLost
from holdfast.records.group import GroupPolicy
from holdfast.records.trajectory import Status
from support.records import make_tasks, settle, someone_else, spec

LEASE_SECONDS = 10.0
Result = TypeVar("Result")


class Checkpoint(Struct, frozen=True):
    """What is safe on the trainer's disk."""

    step: int = 0
    trained: tuple[tuple[str, int], ...] = ()
    """Each group with its step."""

    def groups(self, step: int) -> list[str]:
        return [name for name, trained_in in self.trained if trained_in == step]


class Trainer(Struct):
    """One process. What is in here dies with it."""

    lease: Consumer
    streams: bool
    """Takes groups before it knows their step."""
    checkpoint: Checkpoint
    batch: list[str] = field(default_factory=list)
    is_saved: bool = True


class ManualLeases:
    """The clock that leases go by."""

    def __init__(self) -> None:
        self.now = 1000.0

    def read(self) -> Instant:
        return Instant("test", self.now, self.now)


class Training(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "journal.db"
        self.leases = ManualLeases()
        self.journal = SqliteJournal(self.path, lease_clock=self.leases)
        policy = GroupPolicy(at_least=2)
        self.run = self.do(self.journal.create_run(spec(samples=2, group=policy), [], sealed=False))
        self.worker = self.do(
            self.journal.join(self.run, someone_else(), lease_seconds=1e9, share=True)
        )
        self.claims: list[Claim] = []
        self.admitted = 0
        self.sealed = False
        self.checkpoints = [Checkpoint()]
        self.trainers: list[Trainer] = []
        """The last one holds the lease, if any does; the others were thought dead."""
        self.is_held = False

    def do(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        try:
            self.finish_training()
        finally:
            self.do(self.journal.close())
            self.loop.close()
        assert check(self.path).findings == []
        self.folder.cleanup()

    # --- the run

    @precondition(lambda self: not self.sealed)
    @rule(number=st.integers(1, 4), again=st.booleans())
    def admit(self, number: int, again: bool) -> None:
        self.admitted += number
        first = 0 if again else self.admitted - number
        tasks = make_tasks(*(f"t{task}" for task in range(first, self.admitted)))
        assert self.do(self.journal.admit(self.run, tasks)) == number
        self.claims += self.do(self.journal.claim(self.worker, groups=99))

    @precondition(lambda self: self.claims)
    @rule(which=st.integers(0, 9), good=st.sampled_from((True, True, True, False)))
    def settle(self, which: int, good: bool) -> None:
        claim = self.claims.pop(which % len(self.claims))
        self.do(settle(self.journal, claim, status=Status.COMPLETED if good else Status.FAILED))

    @precondition(lambda self: self.admitted > 6)
    @rule()
    def seal(self) -> None:
        self.do(self.journal.seal(self.run))
        self.sealed = True

    @rule()
    def reopen_the_file(self) -> None:
        self.do(self.journal.close())
        self.journal = SqliteJournal(self.path, lease_clock=self.leases)

    # --- the trainer

    @rule(streams=st.booleans())
    def start(self, streams: bool) -> None:
        """From the newest checkpoint: what it holds is committed, and what it does not is given
        back."""
        who = someone_else(len(self.trainers) + 1)
        try:
            lease = self.do(
                self.journal.subscribe(self.run, "trainer", who, lease_seconds=LEASE_SECONDS)
            )
        except ConsumerHeld:
            assert self.is_held
            return
        assert not self.is_held
        self.is_held = True
        newest = self.checkpoints[-1]
        if newest.step:
            held = self.do(self.journal.ledger(self.run, "trainer"))
            named = {entry.task for entry in held if entry.step == newest.step}
            groups = newest.groups(newest.step)
            assert named <= {*groups, *(e.task for e in held if e.end is GroupEnd.DISMISSED)}
        self.do(self.journal.rewind(lease, newest.step, trained=dict(newest.trained)))
        self.trainers.append(Trainer(lease, streams, newest))

    @property
    def current(self) -> Trainer:
        return self.trainers[-1]

    has_trainer = precondition(lambda self: self.is_held)

    @has_trainer
    @rule(groups=st.integers(1, 3))
    def next_batch(self, groups: int) -> None:
        trainer = self.current
        if not trainer.is_saved:
            return
        if trainer.streams:
            batch = self.do(self.journal.take(trainer.lease, groups=groups))
            trainer.batch += [group[0].key.task for group in batch.groups]
        else:
            step = trainer.checkpoint.step + 1
            batch = self.do(self.journal.next_batch(trainer.lease, step, groups=groups))
            if batch.groups:
                names = [group[0].key.task for group in batch.groups]
                assert set(trainer.batch) <= set(names)
                trainer.batch = names

    @has_trainer
    @rule(which=st.integers(0, 9))
    def dismiss(self, which: int) -> None:
        trainer = self.current
        if trainer.batch and trainer.is_saved:
            name = trainer.batch.pop(which % len(trainer.batch))
            self.do(self.journal.dismiss(trainer.lease, [name], reason="uninformative"))

    @has_trainer
    @rule(keep=st.integers(0, 9))
    def train_and_save(self, keep: int) -> None:
        """A streaming trainer may train on some of what it took."""
        trainer = self.current
        if not trainer.batch or not trainer.is_saved:
            return
        used = len(trainer.batch) if not trainer.streams else 1 + keep % len(trainer.batch)
        now, trainer.batch = trainer.batch[:used], trainer.batch[used:]
        step = trainer.checkpoint.step + 1
        trained = (*trainer.checkpoint.trained, *((name, step) for name in now))
        self.do(self.journal.renew(trainer.lease))
        trainer.checkpoint = Checkpoint(step, trained)
        self.checkpoints.append(trainer.checkpoint)
        trainer.is_saved = False

    @has_trainer
    @rule()
    def commit(self) -> None:
        trainer = self.current
        if not trainer.is_saved:
            step = trainer.checkpoint.step
            groups = trainer.checkpoint.groups(step) if trainer.streams else None
            self.do(self.journal.commit(trainer.lease, step, groups=groups))
            trainer.is_saved = True

    # --- trouble

    @has_trainer
    @rule(clean=st.booleans())
    def lose_the_trainer(self, clean: bool) -> None:
        """It leaves, or it is killed or frozen until its lease is over."""
        if clean:
            self.do(self.journal.unsubscribe(self.current.lease))
        else:
            self.leases.now += LEASE_SECONDS + 1
        self.is_held = False

    @precondition(lambda self: not self.is_held and len(self.checkpoints) > 1)
    @rule()
    def lose_the_newest_checkpoint(self) -> None:
        self.checkpoints.pop()

    @precondition(lambda self: self.is_held and len(self.trainers) > 1)
    @rule(which=st.integers(0, 9), action=st.integers(0, 5))
    def wake_one_that_lost_its_lease(self, which: int, action: int) -> None:
        zombie = self.trainers[which % (len(self.trainers) - 1)]
        lease, step = zombie.lease, zombie.checkpoint.step
        groups = zombie.batch or ["t0"]
        actions = [
            lambda: self.journal.next_batch(lease, step + 1, groups=1),
            lambda: self.journal.take(lease, groups=1),
            lambda: self.journal.dismiss(lease, groups, reason="too old"),
            lambda: self.journal.commit(lease, step + 1, groups=groups),
            lambda: self.journal.rewind(lease, 0),
            lambda: self.journal.renew(lease),
        ]
        before = self.do(self.journal.ledger(self.run, "trainer"))
        with pytest.raises(LeaseLost):
            self.do(actions[action]())
        assert self.do(self.journal.ledger(self.run, "trainer")) == before

    # --- what has to hold

    @invariant()
    def each_group_is_in_the_history_at_most_once(self) -> None:
        names = [name for name, _ in self.checkpoints[-1].trained]
        assert len(names) == len(set(names))

    @invariant()
    def the_ledger_has_one_end_for_each_group(self) -> None:
        entries = self.do(self.journal.ledger(self.run, "trainer"))
        assert [entry.task for entry in entries] == [f"t{n}" for n in range(self.admitted)]
        trained = {e.task: e.step for e in entries if e.end is GroupEnd.TRAINED}
        if self.is_held:
            # A commit follows its checkpoint, so nothing is trained but what one holds.
            assert trained.items() <= dict(self.checkpoints[-1].trained).items()
            dismissed = {e.task for e in entries if e.end is GroupEnd.DISMISSED}
            assert not dismissed & dict(self.checkpoints[-1].trained).keys()

    def finish_training(self) -> None:
        """To the end of the stream, by a trainer that starts anew."""
        if self.is_held:
            self.lose_the_trainer(clean=False)
        while self.claims:
            self.settle(0, good=True)
        self.do(self.journal.seal(self.run))
        self.start(streams=False)
        trainer, ended = self.current, False
        while not ended:
            step = trainer.checkpoint.step + 1
            batch = self.do(self.journal.next_batch(trainer.lease, step, groups=2))
            trainer.batch = [group[0].key.task for group in batch.groups]
            ended = batch.ended
            self.train_and_save(0)
            self.commit()
        entries = self.do(self.journal.ledger(self.run, "trainer"))
        trained = {e.task: e.step for e in entries if e.end is GroupEnd.TRAINED}
        dismissed = {e.task for e in entries if e.end is GroupEnd.DISMISSED}
        assert trained == dict(self.checkpoints[-1].trained)
        assert len(trained) == len(self.checkpoints[-1].trained)
        assert not dismissed & trained.keys()
        assert len(dismissed) + len(trained) == self.admitted


class TestTraining(Training.TestCase):
    settings = settings(max_examples=40, stateful_step_count=40)


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
class TestTrainingLonger(Training.TestCase):
    settings = settings(max_examples=600, stateful_step_count=60)
