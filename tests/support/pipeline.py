"""A pipeline in virtual time: the real pool, pacing and ledger between two simulated sides."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec import Struct, field, structs

from holdfast.journal.process import this_process
from holdfast.journal.sqlite.journal import MemoryJournal
from holdfast.journal.types import Consumer, GroupEnd, Lease, LedgerEntry, WorkerIdentity
from holdfast.pipeline.batches import PacedBatches
from holdfast.pipeline.settings import PipelineSettings
from holdfast.records.epochs import EpochStream
from holdfast.records.group import GroupPolicy
from holdfast.records.run import Run
from holdfast.records.step import Finished, Generated, VersionSpan
from holdfast.records.trajectory import Status
from holdfast.training.run.batches import Batches, StepBatch
from holdfast.training.settings import TrainingSettings
from support.records import generated, make_tasks, spec, started

TURNS = 2
PUSH_SECONDS = 2.0


def mortal() -> WorkerIdentity:
    """This process, as if it were gone as soon as anybody asks: a kill needs no patience."""
    return structs.replace(this_process(), born="another boot:0")


class Durations(Struct, frozen=True):
    """How long each thing takes, in seconds."""

    rollout: Callable[[str, int], float]
    """Of a sample of a task."""
    step: float = 30.0


class Trained(Struct):
    """What a checkpoint holds."""

    step: int = 0
    batches: dict[int, list[str]] = field(default_factory=dict)
    lags: dict[int, float] = field(default_factory=dict)


class Simulation:
    """One training. `kill_trainer` and `kill_rollouter` are SIGKILLs; both come back."""

    def __init__(
        self,
        durations: Durations,
        *,
        training: TrainingSettings,
        pipeline: PipelineSettings | None,
        tasks: int = 12,
        slots: int = 10_000,
        is_lost: Callable[[str, int], bool] = lambda task, sample: False,
        at_least: int = 1,
    ):
        self.journal = MemoryJournal()
        self._durations = durations
        self._training = training
        self._pipeline = pipeline
        self._tasks = make_tasks(*(f"t{n}" for n in range(tasks)))
        self._is_lost = is_lost
        self._at_least = at_least
        self._slots = asyncio.Semaphore(slots)
        self._engine_up = asyncio.Event()
        self._engine_up.set()
        self._version = ""
        self._consumer_name = "trainer"
        self.run: Run
        self.saved = Trained()
        self.batches: dict[int, StepBatch] = {}
        self.most_open = 0
        self.turns_sampled = 0
        self._trainer: asyncio.Task[None] | None = None
        self._rollouter: asyncio.Task[None] | None = None
        self.is_checkpointed = True

    async def work(self) -> None:
        """To the end, whoever is killed on the way."""
        policy = GroupPolicy(at_least=self._at_least)
        samples = self._training.samples
        self.run = await self.journal.create_run(
            spec(samples=samples, group=policy), (), sealed=False
        )
        await asyncio.gather(
            self._keep("_trainer", self._train), self._keep("_rollouter", self._roll)
        )

    async def _keep(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            task = asyncio.create_task(work())
            setattr(self, name, task)
            await asyncio.wait({task})
            if not task.cancelled():
                task.result()
                return
            await asyncio.sleep(5.0)  # It is started again.

    def kill_trainer(self) -> None:
        if self._trainer is not None:
            self._trainer.cancel()

    def kill_rollouter(self) -> None:
        if self._rollouter is not None:
            self._rollouter.cancel()

    async def outage(self, seconds: float) -> None:
        self._engine_up.clear()
        await asyncio.sleep(seconds)
        self._engine_up.set()

    # --- the side that rolls out

    async def _roll(self) -> None:
        worker = await self.journal.join(self.run, mortal(), lease_seconds=600, share=False)
        running: set[asyncio.Task[None]] = set()
        try:
            while not (await self.journal.progress(self.run)).is_over:
                seen = self.journal.changes.count
                for claim in await self.journal.claim(worker, groups=100):
                    for lease in claim.open:
                        task = asyncio.create_task(self._trajectory(lease))
                        running.add(task)
                        task.add_done_callback(running.discard)
                await self.journal.changes.wait(seen, timeout=1.0)
        finally:
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(set(running))

    async def _trajectory(self, lease: Lease) -> None:
        async with self._slots:
            task, sample = lease.key.task, lease.key.sample
            seconds = self._durations.rollout(task, sample)
            records = await self.journal.history(lease.id)
            if not records:
                await self.journal.append(lease, [started()], status=Status.RUNNING)
            done = sum(isinstance(record, Generated) for record in records)
            for turn in range(done, TURNS):
                await asyncio.sleep(seconds / TURNS)
                await self._engine_up.wait()
                await self.journal.append(lease, [self._turn(turn)])
                self.turns_sampled += 1
            status = Status.FAILED if self._is_lost(task, sample) else Status.COMPLETED
            end = Finished(status, "returned", float(sample), 2.0)
            await self.journal.append(lease, [end], status=status, settled=True)

    def _turn(self, turn: int) -> Generated:
        versions = (VersionSpan(self._version, 0, 3),)
        if not turn:
            return generated("0", versions=versions)
        return generated("1", base="0", keep=5, delta=(6,), versions=versions)

    # --- the side that trains

    async def _train(self) -> None:
        consumer = await self.journal.subscribe(
            self.run, self._consumer_name, mortal(), lease_seconds=600
        )
        await self.journal.rewind(consumer, self.saved.step)
        if self.saved.step:
            await self.journal.commit(consumer, self.saved.step)
        trained = structs.replace(
            self.saved, batches=dict(self.saved.batches), lags=dict(self.saved.lags)
        )
        await self._publish(trained.step)
        stream = EpochStream(self._tasks, seed=0, shuffle=False)
        source: Batches
        if self._pipeline is None:
            source = Batches(self.journal, consumer, stream, self._training)
        else:
            source = PacedBatches(
                self.journal,
                consumer,
                stream,
                training=self._training,
                pipeline=self._pipeline,
                tasks=len(self._tasks),
            )
        try:
            await self._steps(consumer, source, trained)
        finally:
            await source.close()

    async def _steps(self, consumer: Consumer, source: Batches, trained: Trained) -> None:
        for step in range(trained.step + 1, self._training.trainer.steps + 1):
            batch = await source.of_step(step)
            if batch is None:
                break
            await self._look(step)
            self.batches[step] = batch
            await asyncio.sleep(self._durations.step)
            trained.step = step
            trained.batches[step] = [group.task for group in batch.groups]
            trained.lags[step] = batch.numbers.get("lag_oldest", 0.0)
            await self.journal.publish_version(
                self.run, f"step-{step}", step=step, digest=f"of {step}", consumer=consumer
            )
            if step % self._training.checkpoint_every == 0 or step == self._training.trainer.steps:
                self.saved = structs.replace(
                    trained, batches=dict(trained.batches), lags=dict(trained.lags)
                )
                await asyncio.sleep(0.0)
                await self.journal.commit(consumer, step)
            await self._publish(step)
        await self.journal.seal(self.run)

    async def _look(self, step: int) -> None:
        entries = await self.ledger()
        open_now = [e for e in entries if e.end is GroupEnd.OPEN and (e.step or step) >= step]
        self.most_open = max(self.most_open, len(open_now))

    async def _publish(self, step: int) -> None:
        await self.journal.publish_version(self.run, f"step-{step}", step=step, digest=f"of {step}")
        await asyncio.sleep(PUSH_SECONDS)
        self._version = f"step-{step}"

    async def ledger(self) -> list[LedgerEntry]:
        return await self.journal.ledger(self.run, self._consumer_name)


def long_tailed(
    seed: int, *, mean: float = 60.0, longest: float = 2400.0
) -> Callable[[str, int], float]:
    """Durations with a long tail, the same for the same sample."""

    def duration(task: str, sample: int) -> float:
        chance = random.Random(f"{seed} {task} {sample}")
        return min(longest, mean * chance.lognormvariate(-0.5, 1.0))

    return duration
