"""Many workers over one journal, without models and in virtual time, with every kind of fault.

More of both where HOLDFAST_EXHAUSTIVE is set, and as many as HOLDFAST_SIMULATION says, such as
`1000x1000000`: that takes a core for some minutes, in a folder in memory (`--basetemp /dev/shm/…`).
The journal is the real one; its clock of leases is the simulation's. In each tick, each worker that
is awake does one thing for each trajectory that it holds, all of them at once. Workers die (and are
declared gone by a control plane, or are only silent), freeze past their leases and wake up, and the
trainer is killed between its checkpoint and its commit. The seed is printed.

What is checked, by the numbers of the invariants:

- I1, I2: whoever takes a trajectory over finds every record that was acknowledged, and goes on
  after it.
- I3, I9: the log of each trajectory is one sequence without gap or repetition, whoever wrote it.
- I4, I5: a trajectory that fails leaves its siblings alone, and is in no batch of a group that is
  kept whole.
- I6: each group is trained in one step, or dismissed, and none twice.
- I7: an append under an older epoch raises, and writes nothing.
- I8: the run is over within a bounded number of ticks.
"""

import asyncio
import contextlib
import os
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from holdfast.journal.lease_clock import Instant
from holdfast.journal.sql.journal import Journal
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.journal.types import Claim, Consumer, GroupEnd, Lease, Worker
from holdfast.records.errors import LeaseLost
from holdfast.records.group import GroupPolicy, Shortfall
from holdfast.records.run import Run
from holdfast.records.step import Finished, Scored, ValueRecorded
from holdfast.records.trajectory import Status
from support.exhaustive import points
from support.records import finished, make_tasks, scored, someone_else, spec, value

_SIZE = os.environ.get("HOLDFAST_SIMULATION")
WORKERS, TRAJECTORIES = (
    [int(number) for number in _SIZE.split("x")]
    if _SIZE
    else (points(24, 60), points(1_600, 20_000))
)
SAMPLES = 4
STEPS = 2
"""Records of a trajectory before its end."""
AT_ONCE = 2
"""Groups that a worker holds."""
LEASE = 6.0
"""Ticks."""
DEATHS, FREEZES, FAILURES, TRAINER_DEATHS = 0.02, 0.03, 0.01, 0.1
"""The chances of each, in a tick; of a failure, for each trajectory."""
BATCH = max(10, TRAJECTORIES // 2_000)


class VirtualClock:
    """The clock of leases: it stands until a tick has passed."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def read(self) -> Instant:
        return Instant("virtual", self.now, self.now)


@dataclass
class Simulated:
    """One worker's place: when its process dies, another one comes."""

    worker: Worker
    claims: list[Claim] = field(default_factory=list)
    frozen_until: float = 0.0
    zombies: list[Lease] = field(default_factory=list)
    """What it held when it died, or lost its lease."""


class Simulation:
    def __init__(self, journal: Journal, clock: VirtualClock, seed: int):
        self.journal, self.clock = journal, clock
        self.random = random.Random(seed)
        self.run: Run
        self.places: list[Simulated] = []
        self.acknowledged: Counter[int] = Counter()
        """Records of each trajectory that some worker was promised."""
        self.settled: Counter[int] = Counter()
        self.epochs: Counter[int] = Counter()
        """Under older ones than these nothing can be written."""
        self.seen: Counter[str] = Counter()
        self.pids = iter(range(1, 10**9))
        self.step = 0
        self.trained: dict[int, tuple[str, ...]] = {}

    async def work(self) -> None:
        tasks = make_tasks(*(f"t{number}" for number in range(TRAJECTORIES // SAMPLES)))
        group = GroupPolicy(shortfall=Shortfall.DROP)
        self.run = await self.journal.create_run(spec(samples=SAMPLES, group=group), tasks)
        self.consumer = await self._subscribe()
        self.places = [Simulated(await self._join()) for _ in range(WORKERS)]
        # Enough for everything to be done twice over, and for all leases to run out in between.
        ticks = 10 * (TRAJECTORIES // (WORKERS * AT_ONCE * SAMPLES)) * (STEPS + 2) + 100 * int(
            LEASE
        )
        for _ in range(ticks):
            self.clock.now += 1.0
            await asyncio.gather(*(self._tick(place) for place in self.places))
            await self._train()
            if self._is_over and (await self.journal.progress(self.run)).is_over:
                break
        else:
            raise AssertionError(f"not over after {ticks} ticks: {self.seen}")
        while await self._train():
            pass

    @property
    def _is_over(self) -> bool:
        return len(self.settled) == TRAJECTORIES

    async def _join(self) -> Worker:
        return await self.journal.join(
            self.run, someone_else(next(self.pids)), lease_seconds=LEASE, share=True
        )

    # --- one worker

    async def _tick(self, place: Simulated) -> None:
        if place.frozen_until > self.clock.now:
            return
        chance = self.random.random()
        if chance < DEATHS:
            await self._die(place)
        elif chance < DEATHS + FREEZES:
            self.seen["frozen"] += 1
            place.frozen_until = self.clock.now + self.random.uniform(0.5, 3.0) * LEASE
        else:
            await self._live(place)

    async def _die(self, place: Simulated) -> None:
        """In the middle of its appends, perhaps: those are made, and nobody hears of them."""
        if self.random.random() < 0.5:
            with contextlib.suppress(LeaseLost):  # One that was frozen before may have lost it.
                await self._advance(place, is_received=False)
        is_known = self.random.random() < 0.5
        self.seen["declared gone" if is_known else "silent"] += 1
        if is_known:
            await self.journal.leave(place.worker)
        await self._replace(place, is_known=is_known)

    async def _replace(self, place: Simulated, *, is_known: bool) -> None:
        """By another process. What the old one held is fenced if its end is known, or else when
        somebody takes it over."""
        held = [item for claim in place.claims for item in claim.open if not self.settled[item.id]]
        for lease in held:
            if is_known:
                self.epochs[lease.id] = max(self.epochs[lease.id], lease.epoch + 1)
        place.zombies += held
        place.worker, place.claims = await self._join(), []

    async def _live(self, place: Simulated) -> None:
        await self._test_zombies(place)
        try:
            await self.journal.heartbeat(place.worker)
            await self._advance(place, is_received=True)
            place.claims = [
                claim for claim in place.claims if any(not item.settled for item in claim.open)
            ]
            if not place.claims:
                await self._claim(place)
        except LeaseLost:
            self.seen["lost its lease"] += 1
            await self._replace(place, is_known=True)

    async def _claim(self, place: Simulated) -> None:
        place.claims = await self.journal.claim(place.worker, groups=AT_ONCE)
        for claim in place.claims:
            for lease in claim.open:
                # Everything that was acknowledged is there; what was in flight may be, too.
                assert lease.next_seq >= self.acknowledged[lease.id], lease
                assert not self.settled[lease.id], lease
                assert lease.epoch > self.epochs[lease.id] or not self.epochs[lease.id], lease
                self.epochs[lease.id] = lease.epoch
                if lease.next_seq:
                    self.seen["taken over"] += 1
                    self.acknowledged[lease.id] = lease.next_seq

    async def _advance(self, place: Simulated, *, is_received: bool) -> None:
        leases = [item for claim in place.claims for item in claim.open if not item.settled]
        results = await asyncio.gather(
            *(self._append(lease, is_received=is_received) for lease in leases),
            return_exceptions=True,
        )
        for error in results:
            if error is not None:
                raise error

    async def _append(self, lease: Lease, *, is_received: bool) -> None:
        at = lease.next_seq
        if at < STEPS:
            await self.journal.append(lease, [value(at)], status=Status.RUNNING)
            count = 1
        elif self._fails(lease):
            await self.journal.append(
                lease, [finished(Status.FAILED)], status=Status.FAILED, settled=True
            )
            count = 1
        else:
            records = [finished(), scored(float(lease.id))]
            await self.journal.append(lease, records, status=Status.COMPLETED, settled=True)
            count = 2
        if at >= STEPS:
            lease.settled = True
            self.settled[lease.id] += 1
            assert self.settled[lease.id] == 1, f"{lease.key} was settled twice"
        if is_received:
            self.acknowledged[lease.id] = at + count

    def _fails(self, lease: Lease) -> bool:
        """Of the trajectory, not of who works on it."""
        return random.Random(lease.id).random() < FAILURES

    async def _test_zombies(self, place: Simulated) -> None:
        """One that has lost its lease writes nothing that anybody would see."""
        fenced = [lease for lease in place.zombies if self.epochs[lease.id] > lease.epoch]
        for lease in fenced[:4]:
            with pytest.raises(LeaseLost):
                await self.journal.append(lease, [value(-1)])
            self.seen["fenced"] += 1
        place.zombies = [lease for lease in place.zombies if lease not in fenced]

    # --- the trainer

    async def _subscribe(self) -> Consumer:
        return await self.journal.subscribe(
            self.run, "trainer", someone_else(10**9 + self.step), lease_seconds=10**9
        )

    async def _train(self) -> bool:
        """One step, if a batch is whole; whether there was one."""
        batch = await self.journal.next_batch(self.consumer, self.step + 1, groups=BATCH)
        if not batch.groups:
            return False
        if self.random.random() < TRAINER_DEATHS:
            # Killed before its checkpoint: after the restore, the same groups come again.
            self.seen["trainer killed"] += 1
            await self.journal.rewind(self.consumer, self.step)
            again = await self.journal.next_batch(self.consumer, self.step + 1, groups=BATCH)
            assert again.groups == batch.groups
        self.step += 1
        await self.journal.commit(self.consumer, self.step)
        names = tuple(group[0].key.task for group in batch.groups)
        assert all(row.status is Status.COMPLETED for group in batch.groups for row in group)
        assert all(len(group) == SAMPLES for group in batch.groups)
        self.trained[self.step] = names
        return True

    # --- afterwards

    async def check(self) -> None:
        await self._check_ledger()
        total = 0
        async for row, records in self.journal.histories(self.run):
            total += 1
            assert row.settled
            steps = [record.path for record in records if isinstance(record, ValueRecorded)]
            assert steps == [str(number) for number in range(STEPS)], (row.key, steps)
            ends = [record for record in records if isinstance(record, Finished)]
            assert len(ends) == 1, row.key
            scores = [record.reward for record in records if isinstance(record, Scored)]
            assert scores == ([float(row.id)] if row.status is Status.COMPLETED else []), row.key
        assert total == TRAJECTORIES

    async def _check_ledger(self) -> None:
        trained = [name for names in self.trained.values() for name in names]
        assert len(trained) == len(set(trained))
        entries = await self.journal.ledger(self.run, "trainer")
        by_end = Counter(entry.end for entry in entries)
        assert len(entries) == TRAJECTORIES // SAMPLES
        assert by_end[GroupEnd.TRAINED] == len(trained)
        assert by_end[GroupEnd.OPEN] == 0, by_end
        assert {entry.task for entry in entries if entry.end is GroupEnd.TRAINED} == set(trained)


@pytest.mark.timeout(7200)
def test_many_workers_with_faults_keep_the_invariants(tmp_path):
    seed = int(os.environ.get("HOLDFAST_SEED", random.SystemRandom().randrange(2**32)))
    print(f"HOLDFAST_SEED={seed}")

    async def simulate() -> Simulation:
        clock = VirtualClock()
        journal = SqliteJournal(tmp_path / "journal.db", lease_clock=clock)
        try:
            simulation = Simulation(journal, clock, seed)
            await simulation.work()
            await simulation.check()
            return simulation
        finally:
            await journal.close()

    seen = asyncio.run(simulate()).seen
    print(f"{WORKERS} workers, {TRAJECTORIES} trajectories: {dict(seen)}")
    for fault in ("frozen", "silent", "declared gone", "taken over", "fenced", "lost its lease"):
        assert seen[fault], f"the simulation never had: {fault}"
