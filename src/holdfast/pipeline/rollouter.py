"""A `Rollouter` runs the engine over a stream that another process fills. It ends when the stream
is sealed and settled.

It samples only from replicas whose weights the trainer has recorded as checked (`WeightGate`).
While the trainer trains steps again after a restore, it does not sample, because the admitted tasks
belong to a later step than the weights of those steps.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from holdfast.engine.connect import Connection
from holdfast.engine.open_run import TRAINER
from holdfast.engine.progress.counters import Progress
from holdfast.engine.running.engine import Ending
from holdfast.engine.running.run_plan import RunPlan
from holdfast.engine.stop import Stop
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import Worker
from holdfast.pipeline.other_part import LOOK_SECONDS, OtherPart
from holdfast.policy.client.capability_check import PROMPT
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.client.weight_gate import WeightGate
from holdfast.policy.policy import Request
from holdfast.records.errors import HoldfastError, UsageError, WaitTimedOut
from holdfast.records.run import Run
from holdfast.records.sampling import Sampling
from holdfast.records.step import VersionSource
from holdfast.rollout.threads.contain import in_background
from holdfast.training.settings import TrainingRecord, training_of
from holdfast.weights.records import JournalRecords

WAITING = "waiting until the trainer has trained again what it had trained, and sent its weights"


class Rollouter:
    """Works on one run, until it is sealed and everything is settled, or until it is stopped."""

    def __init__(
        self,
        plan: RunPlan,
        *,
        journal: Journal,
        connection: Connection,
        stop: Stop,
        progress: Progress | None = None,
        report: Callable[[str], None] = lambda line: None,
        on_joined: Callable[[Worker], Awaitable[None]] | None = None,
    ):
        self._plan = plan
        self._journal = journal
        self._connection = connection
        self._stop = stop
        self._progress = progress or Progress()
        self._report = report
        self._on_joined = on_joined

    async def work(self, run: Run) -> Ending:
        """Rolls out until the stream has ended or a stop is requested. On return, each trajectory
        in flight is durable up to its last whole step."""
        policy = self._connection.policy
        if isinstance(policy, EnginePolicy):
            records = JournalRecords(self._journal, run)
            policy.gate_by(WeightGate(records, patience=policy.patience))
            if await self._until_sent(run, policy):
                await self._check_versions(policy)
        rollouts = self._plan.engine(
            run,
            self._journal,
            self._connection,
            stop=self._stop,
            progress=self._progress,
            on_joined=self._on_joined,
        )
        async with in_background(self._watch_trainer(run), name="the trainer's lease"):
            return await rollouts.work()

    async def _watch_trainer(self, run: Run) -> None:
        """Stops this rollouter with an error if it has nothing to do and the trainer is gone. Only
        the trainer admits tasks."""
        trainer = OtherPart(
            partial(self._journal.is_held, run, TRAINER),
            patience=self._plan.settings.patience,
            waits_for=f"for tasks of run {run.spec.name!r}: nobody trains it; start its trainer "
            "with the same command",
        )
        try:
            while True:
                if self._progress.running > 0:
                    trainer.begin_wait()
                await trainer.check()
                await asyncio.sleep(LOOK_SECONDS)
        except HoldfastError as error:
            self._stop.fail(error)

    async def _check_versions(self, policy: EnginePolicy) -> None:
        """Raises `UsageError` if it cannot be known which weights sample a token, because an engine
        reports neither the versions of its weights nor its restarts."""
        request = Request(PROMPT, Sampling(1), 0, "holdfast-rollouter-check")
        spans = (await policy.sample(request)).versions
        is_labelled = all(span.source is VersionSource.ENGINE for span in spans)
        for endpoint in policy.endpoints:
            if not is_labelled and not endpoint.incarnation:
                raise UsageError(
                    f"{endpoint.name} says neither which weights sampled a token nor when it was "
                    "started, and a rollouter of its own cannot know: start vLLM with "
                    "--enable-scale-out, or roll out and train in one process "
                    "(holdfast.pipeline.train_async)"
                )

    async def _until_sent(self, run: Run, policy: EnginePolicy) -> bool:
        """Waits until a replica has weights that the trainer sent. Returns False if the run is over
        or a stop is requested.

        Raises `WaitTimedOut` if the trainer sends no weights within the policy's patience. After a
        restart, a trainer first repeats steps that it had already trained. The patience begins
        again with each repeated step.
        """
        began, before, is_reported = time.monotonic(), None, False
        while not self._stop.requested and not (await self._journal.progress(run)).is_over:
            seen = self._journal.changes.count
            records = await self._journal.replica_weights(run)
            training = await self._training(run)
            is_catching_up = training is not None and training.is_catching_up
            if not is_catching_up and any(record.is_checked for record in records):
                return True
            if training != before:
                began, before = time.monotonic(), training
            if (waited := time.monotonic() - began) > policy.patience:
                raise WaitTimedOut(
                    f"waited {waited:.0f} s until the trainer sends weights to "
                    f"{', '.join(e.name for e in policy.endpoints)}: it owes them; start it with "
                    "the same engines (--only trainer, or without --only), and again if it hangs; "
                    "a step that takes longer needs more --patience"
                )
            if not is_reported:
                is_reported = True
                self._report(WAITING)
            await self._wait(seen)
        return False

    async def _wait(self, seen: int) -> None:
        changed = self._journal.changes.wait(seen, timeout=LOOK_SECONDS)
        stopped = self._stop.event.wait()
        tasks = [asyncio.ensure_future(each) for each in (changed, stopped)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _training(self, run: Run) -> TrainingRecord | None:
        stored = await self._journal.find_run(run.spec.name)
        return None if stored is None else training_of(stored)
