"""The ledger of a run's groups in memory: the model of `sqlite.delivery`."""

import time
from collections.abc import Callable, Sequence
from enum import IntEnum

from msgspec import Struct, field

from holdfast.journal.process import is_gone
from holdfast.journal.rules import consumer_held, lease_lost, not_taken, step_passed
from holdfast.journal.types import Consumer, GroupEnd, WorkerIdentity
from holdfast.records.group import Dismissal
from holdfast.records.run import Run


class EntryState(IntEnum):
    """Of a group that a consumer has looked at."""

    READY = 0
    TAKEN = 1
    DISMISSED = 2
    SHORT = 3


class Entry(Struct):
    """One group in the ledger of one consumer."""

    state: EntryState
    settled: int
    """The group's place in the order of settling."""
    step: int | None = None
    place: int | None = None
    reason: str = ""

    @property
    def is_had(self) -> bool:
        """Whether the consumer took it; then it stays as it is."""
        return self.state in (EntryState.TAKEN, EntryState.DISMISSED)

    def is_after(self, step: int) -> bool:
        return self.is_had and (self.step is None or self.step > step)


class ReadyGroup(Struct, frozen=True):
    """A group with all its members settled, as the journal sees it."""

    ordinal: int
    settled: int
    is_kept: bool


class ConsumerLedger(Struct):
    """What one consumer has, and who holds it."""

    committed: int | None = None
    seen: int = 0
    epoch: int = 0
    holder: WorkerIdentity | None = None
    until: float = 0.0
    entries: dict[int, Entry] = field(default_factory=dict)

    # --- the lease

    def subscribe(
        self, run: Run, name: str, identity: WorkerIdentity, *, lease_seconds: float
    ) -> Consumer:
        left = self.until - time.monotonic()
        if holder := self.live_holder():
            raise consumer_held(run, name, holder=str(holder), seconds=left)
        self.epoch += 1
        self.holder, self.until = identity, time.monotonic() + lease_seconds
        return Consumer(run, name, self.epoch, identity, lease_seconds, self.committed)

    def live_holder(self) -> WorkerIdentity | None:
        is_leased = self.holder is not None and self.until > time.monotonic()
        return None if not is_leased or self.holder is None or is_gone(self.holder) else self.holder

    def renew(self, consumer: Consumer) -> None:
        if self.epoch != consumer.epoch:
            raise lease_lost(consumer)
        self.until = time.monotonic() + consumer.lease_seconds

    def unsubscribe(self, consumer: Consumer) -> None:
        if self.epoch == consumer.epoch:
            self.epoch, self.holder = self.epoch + 1, None

    # --- taking

    def step(
        self,
        name: str,
        step: int,
        groups: int,
        *,
        unseen: Callable[[], list[ReadyGroup]],
        is_over: bool,
        before: int | None = None,
    ) -> list[int] | None:
        """The groups of that step; None when it cannot have as many yet."""
        reserved = self.in_step(step)
        is_later = self.committed is None or step > self.committed
        known = any(entry.is_had and entry.step == step for entry in self.entries.values())
        if not reserved and not (is_later and known):
            had = [entry.step for entry in self.entries.values() if entry.is_had]
            steps = [number for number in (*had, self.committed) if number is not None]
            if steps and step <= max(steps):
                raise step_passed(name, step=step, last=max(steps))
        missing = groups - len(reserved)
        if missing > 0 and is_later:
            more = self.take(missing, step, unseen=unseen, is_over=is_over, before=before)
            return None if more is None else reserved + more
        return reserved

    def in_step(self, step: int) -> list[int]:
        results = [
            (entry.place or 0, ordinal)
            for ordinal, entry in self.entries.items()
            if entry.state is EntryState.TAKEN and entry.step == step
        ]
        return [ordinal for _, ordinal in sorted(results)]

    def take(
        self,
        groups: int,
        step: int | None,
        *,
        unseen: Callable[[], list[ReadyGroup]],
        is_over: bool,
        before: int | None = None,
    ) -> list[int] | None:
        ready = self.ready(groups, unseen, before)
        if len(ready) < groups and not is_over:
            return None
        self._put_in_step(step, [self.entries[ordinal] for ordinal in ready])
        return ready

    def _put_in_step(self, step: int | None, entries: list[Entry]) -> None:
        places = [
            entry.place
            for entry in self.entries.values()
            if entry.is_had and entry.step == step and entry.place is not None
        ]
        for place, entry in enumerate(entries, max(places, default=-1) + 1):
            entry.state, entry.step = EntryState.TAKEN, step
            entry.place = None if step is None else place

    def ready(
        self, limit: int, unseen: Callable[[], list[ReadyGroup]], before: int | None = None
    ) -> list[int]:
        if before is not None:
            self._look(unseen())
            return sorted(ordinal for ordinal in self._ready() if ordinal < before)[:limit]
        while len(numbers := self._ready()) < limit and (new := unseen()):
            self._look(new[: limit - len(numbers)])
        return numbers[:limit]

    def _look(self, new: Sequence[ReadyGroup]) -> None:
        for group in new:
            state = EntryState.READY if group.is_kept else EntryState.SHORT
            reason = "" if group.is_kept else str(Dismissal.TOO_FEW_VALID)
            self.entries[group.ordinal] = Entry(state, group.settled, reason=reason)
            self.seen = group.settled

    def _ready(self) -> list[int]:
        results = [
            (entry.settled, ordinal)
            for ordinal, entry in self.entries.items()
            if entry.state is EntryState.READY
        ]
        return [ordinal for _, ordinal in sorted(results)]

    # --- what becomes of the groups

    def dismiss(self, consumer: Consumer, named: Sequence[tuple[str, int]], reason: str) -> None:
        wrong = []
        for name, ordinal in named:
            entry = self.entries.get(ordinal)
            if entry is None or not self._is_dismissible(entry, reason):
                wrong.append(name)
        if wrong:
            raise not_taken(consumer.name, wrong)
        for _, ordinal in named:
            self.entries[ordinal].state = EntryState.DISMISSED
            self.entries[ordinal].reason = reason

    def _is_dismissible(self, entry: Entry, reason: str) -> bool:
        if entry.state is EntryState.DISMISSED:
            return entry.reason == reason
        is_later = entry.step is None or self.committed is None or entry.step > self.committed
        return entry.state is EntryState.TAKEN and is_later

    def commit(self, consumer: Consumer, step: int, named: Sequence[tuple[str, int]]) -> None:
        entries = {name: self.entries.get(ordinal) for name, ordinal in named}
        fresh: list[Entry] = []
        wrong = []
        for name, entry in entries.items():
            if (
                entry is None
                or entry.state is not EntryState.TAKEN
                or entry.step not in (None, step)
            ):
                wrong.append(name)
            elif entry.step is None:
                fresh.append(entry)
        if wrong:
            raise not_taken(consumer.name, wrong)
        if fresh and self.committed is not None and step <= self.committed:
            raise step_passed(consumer.name, step=step, last=self.committed)
        self._put_in_step(step, fresh)
        for entry in self.entries.values():
            if entry.state is EntryState.DISMISSED and entry.step is None:
                entry.step = step
        self.committed = step if self.committed is None else max(self.committed, step)

    def rewind(
        self, consumer: Consumer, step: int, trained: Sequence[tuple[str, int, int]] = ()
    ) -> int:
        self._hold(consumer, step, trained)
        later = [number for number, entry in self.entries.items() if entry.is_after(step)]
        for ordinal in later + self._ready():
            self.seen = min(self.seen, self.entries.pop(ordinal).settled - 1)
        if step or trained or self.committed is not None:
            self.committed = step
        return len(later)

    def _hold(self, consumer: Consumer, step: int, trained: Sequence[tuple[str, int, int]]) -> None:
        """Groups (name, ordinal, step) that the checkpoint of `step` holds are in it."""
        results = [(name, self.entries.get(ordinal), at) for name, ordinal, at in trained]
        if wrong := [
            name for name, e, _ in results if e is None or e.state is not EntryState.TAKEN
        ]:
            raise not_taken(consumer.name, wrong)
        for _, entry, at in results:
            if entry is not None and entry.is_after(step):
                self._put_in_step(at, [entry])

    def look_anew(self) -> None:
        """The run was amended: only what the consumer has stays."""
        self.entries = {number: entry for number, entry in self.entries.items() if entry.is_had}
        self.seen = 0

    def forget(self, ordinal: int) -> None:
        """The group is open again."""
        entry = self.entries.get(ordinal)
        if entry is not None and not entry.is_had:
            del self.entries[ordinal]

    def end_of(self, ordinal: int, *, settled: bool) -> tuple[GroupEnd, int | None, str]:
        entry = self.entries.get(ordinal)
        if entry is None or entry.state is EntryState.READY:
            return GroupEnd.OPEN, None, "ready" if settled else "rolling out"
        if entry.state is not EntryState.TAKEN:
            return GroupEnd.DISMISSED, entry.step, entry.reason
        if None not in (entry.step, self.committed) and not entry.is_after(self.committed or 0):
            return GroupEnd.TRAINED, entry.step, ""
        return GroupEnd.OPEN, entry.step, "taken"
