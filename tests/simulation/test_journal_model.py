"""SQLite and PostgreSQL against their twin in memory: whatever is done to both, both say the same.

Hypothesis makes up the operations, shrinks what fails, and prints the blob that repeats it.
"""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec import structs

from holdfast.journal.damage.check import check
from holdfast.journal.damage.check_server import check_server
from holdfast.journal.damage.logs import Finding
from holdfast.journal.postgres.journal import PostgresJournal
from holdfast.journal.process import this_process
from holdfast.journal.sql.journal import Journal
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.journal.types import Batch, Claim, Consumer, Lease, TrajectoryRow, Worker
from holdfast.records.errors import HoldfastError
from holdfast.records.group import GroupPolicy, Shortfall
from holdfast.records.run import Run
from holdfast.records.step import Record, Reopened
from holdfast.records.trajectory import Status
from support.journal import postgres_server
from support.records import finished, make_tasks, scored, someone_else, spec, value
from support.simulation.model_journal import ModelJournal

TASKS = [f"t{number}" for number in range(8)]
Result = TypeVar("Result")
Pair = tuple[Lease, Lease]


def plain(result: object) -> object:
    """What both have to agree on: everything but clocks and shared identities."""
    match result:
        case Run():
            return (result.id, result.spec, [change.differences for change in result.changes])
        case Claim():
            return (
                result.task,
                result.ordinal,
                [plain(journal) for journal in result.open],
                result.settled,
            )
        case Lease():
            # Where a lease that takes no more appends would have gone on is of no consequence.
            place = None if result.broken else result.next_seq
            return (result.key, result.id, result.epoch, result.status, place)
        case Consumer():
            return (result.name, result.epoch, result.identity, result.committed)
        case Worker():
            return (result.id, result.identity, result.run)
        case Batch() | TrajectoryRow():
            return result
        case Reopened():
            return (result.reason,)
        case list():
            return [plain(journal) for journal in result]
        case HoldfastError():
            return type(result).__name__
        case _:
            return result


class BothJournals(RuleBasedStateMachine):
    """The same operation on both; then the same answer, the same error, the same contents."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.place = self.new_place()
        self.durable: Journal = self.open()
        self.memory = ModelJournal()
        self.counter = 0
        self.workers: list[tuple[Worker, Worker]] = []
        self.leases: list[Pair] = []
        self.consumers: list[tuple[Consumer, Consumer]] = []
        self.step = 0
        policy = GroupPolicy(shortfall=Shortfall.PARTIAL, at_least=2)
        self.spec = spec(samples=2, group=policy)
        self.run = self.both(
            lambda journal: journal.create_run(self.spec, make_tasks(*TASKS[:4]), sealed=False)
        )

    # --- where the durable one is

    def new_place(self) -> object:
        self.folder = tempfile.TemporaryDirectory()
        return Path(self.folder.name) / "journal.db"

    def open(self) -> Journal:
        return SqliteJournal(self.place)

    def check(self) -> list[Finding]:
        findings = check(self.place).findings
        self.folder.cleanup()
        return findings

    def teardown(self) -> None:
        self.loop.run_until_complete(self.durable.close())
        self.loop.close()
        assert self.check() == []

    def both(self, do: Callable[[Journal], Awaitable[Result]]) -> tuple[Result, Result]:
        return self.each(do, do)

    def each(
        self,
        on_durable: Callable[[Journal], Awaitable[Result]],
        on_memory: Callable[[Journal], Awaitable[Result]],
    ) -> tuple[Result, Result]:
        """Both results; an error that both agree on is a result too."""
        mine = self._outcome(on_durable, self.durable)
        model = self._outcome(on_memory, self.memory)
        assert plain(mine) == plain(model)
        return mine, model  # type: ignore[return-value]

    def _outcome(self, do: Callable[[Journal], Awaitable[Result]], journal: Journal) -> object:
        async def outcome() -> object:
            try:
                return await do(journal)
            except HoldfastError as error:
                return error

        return self.loop.run_until_complete(outcome())

    def some(self, number: int) -> Pair:
        """Any lease that was ever given out, the current ones more often."""
        return self.leases[-1 - number % len(self.leases)]

    # --- workers

    @rule(pid=st.integers(1, 3), share=st.booleans())
    def join(self, pid: int, share: bool) -> None:
        worker = self.each(
            lambda journal: journal.join(
                self.run[0], someone_else(pid), lease_seconds=1e6, share=share
            ),
            lambda journal: journal.join(
                self.run[1], someone_else(pid), lease_seconds=1e6, share=share
            ),
        )
        if isinstance(worker[0], Worker):
            self.workers.append(worker)

    @precondition(lambda self: self.workers)
    @rule(which=st.integers(0, 99), groups=st.integers(1, 3))
    def claim(self, which: int, groups: int) -> None:
        mine, model = self.workers[which % len(self.workers)]
        claims = self.each(
            lambda journal: journal.claim(mine, groups=groups),
            lambda journal: journal.claim(model, groups=groups),
        )
        if isinstance(claims[0], list):
            for claim, two in zip(*claims, strict=True):
                self.leases += list(zip(claim.open, two.open, strict=True))

    @precondition(lambda self: self.workers)
    @rule(which=st.integers(0, 99))
    def heartbeat(self, which: int) -> None:
        mine, model = self.workers[which % len(self.workers)]
        self.each(lambda journal: journal.heartbeat(mine), lambda journal: journal.heartbeat(model))

    @precondition(lambda self: self.workers)
    @rule(which=st.integers(0, 99))
    def leave(self, which: int) -> None:
        # It stays in the list: one that has left may try anything.
        mine, model = self.workers[which % len(self.workers)]
        self.each(lambda journal: journal.leave(mine), lambda journal: journal.leave(model))

    # --- the log

    def append(
        self,
        pair: Pair,
        records: list[Record],
        *,
        status: Status | None = None,
        settled: bool | None = None,
    ) -> None:
        mine, model = pair
        self.each(
            lambda journal: journal.append(mine, records, status=status, settled=settled),
            lambda journal: journal.append(model, records, status=status, settled=settled),
        )
        assert plain(mine) == plain(model)
        assert (mine.broken is None) == (model.broken is None)

    def fresh(self, number: int) -> list[Record]:
        self.counter += number
        return [value(self.counter + offset) for offset in range(number)]

    @precondition(lambda self: self.leases)
    @rule(which=st.integers(0, 99), number=st.integers(0, 3))
    def append_some(self, which: int, number: int) -> None:
        self.append(self.some(which), self.fresh(number))

    @precondition(lambda self: self.leases)
    @rule(which=st.lists(st.integers(0, 99), min_size=1, max_size=3), number=st.integers(1, 2))
    def append_some_together(self, which: list[int], number: int) -> None:
        records = self.fresh(number)
        pairs = [self.some(journal) for journal in which]
        self.each(
            lambda journal: journal.append_together([(mine, records, None) for mine, _ in pairs]),
            lambda journal: journal.append_together([(model, records, None) for _, model in pairs]),
        )

    @precondition(lambda self: self.leases)
    @rule(which=st.integers(0, 99), good=st.booleans(), settled=st.booleans())
    def finish(self, which: int, good: bool, settled: bool) -> None:
        pair = self.some(which)
        if pair[0].settled or pair[0].status.is_over:
            return
        status = Status.COMPLETED if good else Status.FAILED
        ending: list[Record] = [finished(status), *([scored()] if good and settled else [])]
        self.append(pair, ending, status=status, settled=settled or None)

    @precondition(lambda self: self.leases)
    @rule(which=st.integers(0, 99))
    def cut(self, which: int) -> None:
        mine, model = self.some(which)
        self.each(lambda journal: journal.cut(mine), lambda journal: journal.cut(model))

    @rule()
    def reopen(self) -> None:
        self.each(
            lambda journal: journal.reopen(self.run[0], reason="again"),
            lambda journal: journal.reopen(self.run[1], reason="again"),
        )

    @rule(names=st.sets(st.sampled_from(TASKS), min_size=1))
    def rescore(self, names: set[str]) -> None:
        async def some(journal: Journal, run: Run) -> int:
            rows = await journal.trajectories(run)
            return await journal.rescore(run, [row.id for row in rows if row.key.task in names])

        self.each(
            lambda journal: some(journal, self.run[0]), lambda journal: some(journal, self.run[1])
        )

    @rule(
        names=st.sets(st.sampled_from(TASKS), min_size=1),
        samples=st.integers(1, 3),
        scorer=st.sampled_from(("", "", "one", "two")),
        corrected=st.sets(st.sampled_from(TASKS), max_size=2),
    )
    def amend(self, names: set[str], samples: int, scorer: str, corrected: set[str]) -> None:
        changed = structs.replace(spec(samples=samples, group=self.spec.group), scorer=scorer)
        tasks = [
            structs.replace(task, ground_truth="corrected") if task.id in corrected else task
            for task in make_tasks(*sorted(names))
        ]
        amended = self.each(
            lambda journal: journal.amend_run(self.run[0], changed, tasks, differences=["d"]),
            lambda journal: journal.amend_run(self.run[1], changed, tasks, differences=["d"]),
        )
        if isinstance(amended[0], Run):  # Not with another scorer while a consumer has groups.
            self.run = amended

    # --- streams and versions

    @rule(names=st.lists(st.sampled_from(TASKS), max_size=3), other=st.booleans())
    def admit(self, names: list[str], other: bool) -> None:
        tasks = make_tasks(*names)
        if other and tasks:
            tasks[-1] = structs.replace(tasks[-1], ground_truth="another")
        self.each(
            lambda journal: journal.admit(self.run[0], tasks),
            lambda journal: journal.admit(self.run[1], tasks),
        )

    @rule()
    def seal(self) -> None:
        self.each(
            lambda journal: journal.seal(self.run[0]), lambda journal: journal.seal(self.run[1])
        )

    @rule()
    def unseal(self) -> None:
        self.each(
            lambda journal: journal.unseal(self.run[0]), lambda journal: journal.unseal(self.run[1])
        )

    @rule(name=st.sampled_from(("v1", "v2", "v3")), digest=st.sampled_from("ab"))
    def publish(self, name: str, digest: str) -> None:
        self.each(
            lambda journal: journal.publish_version(self.run[0], name, step=1, digest=digest),
            lambda journal: journal.publish_version(self.run[1], name, step=1, digest=digest),
        )

    # --- delivery

    @rule(name=st.sampled_from("xy"), gone=st.booleans())
    def subscribe(self, name: str, gone: bool) -> None:
        # The lease of one whose process is gone may be taken over; it may still try anything.
        who = structs.replace(this_process(), pid=2**22 + 1) if gone else someone_else()
        consumer = self.each(
            lambda journal: journal.subscribe(self.run[0], name, who, lease_seconds=1e6),
            lambda journal: journal.subscribe(self.run[1], name, who, lease_seconds=1e6),
        )
        if isinstance(consumer[0], Consumer):
            self.consumers.append(consumer)

    def consumer(self, which: int) -> tuple[Consumer, Consumer]:
        """Any that ever was, the current ones more often."""
        return self.consumers[-1 - which % len(self.consumers)]

    @precondition(lambda self: self.consumers)
    @rule(which=st.integers(0, 3), renew=st.booleans())
    def renew_or_unsubscribe(self, which: int, renew: bool) -> None:
        mine, model = self.consumer(which)
        if renew:
            self.each(lambda journal: journal.renew(mine), lambda journal: journal.renew(model))
        else:
            self.each(
                lambda journal: journal.unsubscribe(mine),
                lambda journal: journal.unsubscribe(model),
            )

    @precondition(lambda self: self.consumers)
    @rule(which=st.integers(0, 3), ahead=st.integers(-1, 2), groups=st.integers(1, 3))
    def next_batch(self, which: int, ahead: int, groups: int) -> None:
        mine, model = self.consumer(which)
        self.step = max(0, self.step + ahead)
        self.each(
            lambda journal: journal.next_batch(mine, self.step, groups=groups),
            lambda journal: journal.next_batch(model, self.step, groups=groups),
        )

    @precondition(lambda self: self.consumers)
    @rule(which=st.integers(0, 3), groups=st.integers(1, 2))
    def take(self, which: int, groups: int) -> None:
        mine, model = self.consumer(which)
        self.each(
            lambda journal: journal.take(mine, groups=groups),
            lambda journal: journal.take(model, groups=groups),
        )

    @precondition(lambda self: self.consumers)
    @rule(which=st.integers(0, 3), names=st.sets(st.sampled_from(TASKS), max_size=2))
    def dismiss(self, which: int, names: set[str]) -> None:
        mine, model = self.consumer(which)
        groups = sorted(names)
        self.each(
            lambda journal: journal.dismiss(mine, groups, reason="too old"),
            lambda journal: journal.dismiss(model, groups, reason="too old"),
        )

    @precondition(lambda self: self.consumers)
    @rule(
        which=st.integers(0, 3),
        back=st.integers(-1, 2),
        names=st.none() | st.sets(st.sampled_from(TASKS), max_size=2),
    )
    def commit(self, which: int, back: int, names: set[str] | None) -> None:
        mine, model = self.consumer(which)
        groups = None if names is None else sorted(names)
        self.each(
            lambda journal: journal.commit(mine, self.step - back, groups=groups),
            lambda journal: journal.commit(model, self.step - back, groups=groups),
        )

    @precondition(lambda self: self.consumers)
    @rule(
        which=st.integers(0, 3),
        back=st.integers(0, 3),
        names=st.sets(st.sampled_from(TASKS), max_size=2),
    )
    def rewind(self, which: int, back: int, names: set[str]) -> None:
        mine, model = self.consumer(which)
        step = self.step - back
        trained = dict.fromkeys(sorted(names), step)
        self.each(
            lambda journal: journal.rewind(mine, step, trained=trained),
            lambda journal: journal.rewind(model, step, trained=trained),
        )

    # --- blobs and the file

    @rule(body=st.binary(max_size=8))
    def blob(self, body: bytes) -> None:
        digest, _ = self.both(lambda journal: journal.put_blob(body))
        self.both(lambda journal: journal.get_blob(digest))

    @rule()
    def close_and_reopen_the_file(self) -> None:
        self.loop.run_until_complete(self.durable.close())
        self.durable = self.open()
        # Where a worker goes on claiming is not kept: a new process looks from the first task.
        self.memory._cursors.clear()

    @invariant()
    def both_hold_the_same(self) -> None:
        async def contents(journal: Journal, run: Run) -> object:
            read = [
                (row, [plain(record) for record in records])
                async for row, records in journal.histories(run)
            ]
            (listed,) = await journal.runs()
            ledgers = [await journal.ledger(run, name) for name in await journal.consumers(run)]
            ledgers.append(await journal.held_groups(run))
            known = (await journal.progress(run), await journal.versions(run), ledgers)
            return read, await journal.tasks(run), listed.by_status, listed.settled, known

        self.each(
            lambda journal: contents(journal, self.run[0]),
            lambda journal: contents(journal, self.run[1]),
        )


class ServerAndMemory(BothJournals):
    """The same with a journal on PostgreSQL."""

    def new_place(self) -> object:
        return postgres_server.emptied_database()

    def open(self) -> Journal:
        return PostgresJournal(self.place)

    def check(self) -> list[Finding]:
        return asyncio.run(check_server(self.place)).findings


class TestBothJournals(BothJournals.TestCase):
    settings = settings(max_examples=30, stateful_step_count=30)


needs_server = pytest.mark.skipif(
    not postgres_server.is_available(), reason="needs a PostgreSQL server"
)


@needs_server
class TestServerAndMemory(ServerAndMemory.TestCase):
    settings = settings(max_examples=6, stateful_step_count=25)


@needs_server
@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
class TestServerAndMemoryLonger(ServerAndMemory.TestCase):
    settings = settings(max_examples=300, stateful_step_count=50)


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
class TestBothJournalsLonger(BothJournals.TestCase):
    settings = settings(max_examples=500, stateful_step_count=50)
