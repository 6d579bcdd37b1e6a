"""Runs one training of `AsyncGRPOTrainer`. Rollouts continue while it trains, and it queues their
rows.

Tasks are taken from the data set as the trainer takes rows. The number of groups that are being
sampled or queued is limited, so that few rows become too old to train. The n-th task is a pure
function of n, and the ledger records which groups remain, so no position in the data set must be
saved.
"""

import math
import queue
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from holdfast import crashpoint
from holdfast.convert.checks import check_temperature, check_vocabulary
from holdfast.convert.trl import to_trl_async
from holdfast.delivery.settled_groups import LOOK_SECONDS
from holdfast.delivery.stream import Trained
from holdfast.delivery.taken_rows import TakenRow
from holdfast.delivery.thread import BackgroundTask
from holdfast.delivery.weights import ModelWeights, read_weights
from holdfast.journal.types import RunProgress, TrajectoryRow
from holdfast.records.epochs import EpochStream
from holdfast.records.errors import UsageError
from holdfast.records.group import Dismissal
from holdfast.records.samples.version import WeightVersion
from holdfast.training.batch import load_group
from holdfast.training.run.batches import NothingRewarded
from holdfast.trl.session import TrlOptions, TrlSession

NO_REWARD = "no member has a reward"


class QueuedRow(Struct, frozen=True):
    """A row for the trainer, with its place in its group."""

    fields: Mapping[str, Any]
    """The fields of TRL's `RolloutSample`."""
    row: TakenRow
    group: tuple[int, ...]
    """The numbers of those rows of its group that are queued. Rows that the restored checkpoint
    holds are not queued."""


class AsyncSession(TrlSession):
    """One training, opened when it begins. Call `start` after the first call of `publish`."""

    def __init__(
        self,
        options: TrlOptions,
        tasks: EpochStream,
        *,
        args: Any,
        model: Any,
        tokenizer: Any,
        step: int,
        trained: Trained,
        split: Mapping[str, Sequence[int]],
    ):
        """`step` is the step of the restored checkpoint. `trained` and `split` are the groups that
        this checkpoint records (`TakenRows`)."""
        # No later process has the weights that sampled these rows, so a run belongs to one
        # training.
        super().__init__(
            options,
            args,
            training=str(Path(args.output_dir).resolve()),
            samples=args.num_generations,
            model=model,
            tokenizer=tokenizer,
        )
        self._tasks = tasks
        self._model = model
        self._split = {task: tuple(rows) for task, rows in split.items()}
        self._window = max(1, math.ceil(args.max_inflight_tasks / args.num_generations))
        self._unpulled = 0
        self._counted_from = 0
        self._live = (0, 0)
        self._versions: list[WeightVersion] = []
        self._feeding: BackgroundTask | None = None
        self.beat = time.monotonic()
        """The time when the rollouts were last checked."""
        self.rows: queue.Queue[QueuedRow] = queue.Queue()
        self.metrics: queue.Queue[dict[str, float]] = queue.Queue()
        self._begin(self._open(step, trained))

    async def _open(self, step: int, trained: Trained) -> None:
        await self._stream.open(step, trained=trained, begins=not step)
        self._versions = await self._stream.journal.versions(self._stream.run)
        progress = await self._stream.journal.progress(self._stream.run)
        self._counted_from = progress.planned // self._args.num_generations

    # --- what TRL's thread calls

    def publish(self, tensors: Mapping[str, Any], *, step: int) -> None:
        """Writes the weights after `step` durably under a name, and then sends them to the
        engines."""
        self._thread.call(self._send(tensors, step))

    def start(self) -> None:
        self._thread.call(self._start())

    def go_live(self, version: int, *, step: int) -> None:
        """Records that `version` is TRL's number for the weights after `step`."""
        self._live = (version, step)

    def pulled_group(self) -> None:
        """Allows one more group to be sampled, because the trainer has taken a group."""
        self._thread.post(self._make_room)

    def commit(self, step: int, trained: Trained) -> None:
        self._thread.call(self._stream.commit(step, trained=trained))

    def dismiss(self, tasks: Sequence[str], *, reason: str) -> None:
        stream = self._stream
        self._thread.call(stream.journal.dismiss(stream.consumer, tasks, reason=reason))

    def trained_groups(self) -> list[int]:
        """Returns the numbers of the groups that the ledger records as trained."""
        entries = self._thread.call(self._stream.ledger())
        return [entry.ordinal for entry in entries if entry.end == "trained"]

    def check(self) -> None:
        """Raises the error that ended the rollouts, if an error ended them."""
        if self._feeding is not None:
            self._feeding.check()

    # --- in the event loop

    async def _send(self, tensors: Mapping[str, Any], step: int) -> None:
        weights = await read_weights(self._model, tensors)
        if not step:
            self._check_first(weights)
        version, stream = await self._name(weights, step), self._stream
        self._versions += await stream.journal.versions(stream.run, name=version.name)
        crashpoint.reach("trl.published")
        await self._publish(version)

    def _check_first(self, weights: ModelWeights) -> None:
        """Raises `UsageError` if the run began with another model."""
        first = [version for version in self._versions if not version.step]
        if first and all(version.digest != weights.digest for version in first):
            raise UsageError(
                f"run {self._stream.run.spec.name!r} of this journal was begun with other weights "
                "than the trainer's: give another run, or another journal"
            )

    async def _start(self) -> None:
        await self._stream.start()
        self._feeding = BackgroundTask(self._feed(), name="rows for the trainer")

    async def _close(self) -> None:
        try:
            if self._feeding is not None:
                await self._feeding.end()
        finally:
            await self._stream.close()

    def _make_room(self) -> None:
        self._unpulled -= 1
        self._stream.journal.changes.notify()

    async def _feed(self) -> None:
        journal, consumer = self._stream.journal, self._stream.consumer
        while True:
            seen = journal.changes.count
            self.beat = time.monotonic()
            progress = await journal.progress(self._stream.run)
            await self._admit(progress)
            batch = await journal.take(consumer, groups=1)
            if batch.groups:
                await self._queue(batch.groups[0])
                continue
            await self._check_alive()
            await journal.changes.wait(seen, timeout=LOOK_SECONDS)

    async def _admit(self, progress: RunProgress) -> None:
        size = self._args.num_generations
        under_way = math.ceil((progress.planned - progress.settled) / size)
        room = self._window - under_way - self._unpulled
        if room > 0:
            await self._stream.admit(self._tasks.draw(progress.planned // size, room))

    async def _check_alive(self) -> None:
        """Raises an error if the rollouts have ended, or if too many groups in a row gave no rows
        to train."""
        self._stream.check_alive()
        dismissals = await self._stream.dismissals(since=self._counted_from)
        failed, unrewarded = dismissals[Dismissal.TOO_FEW_VALID], dismissals[NO_REWARD]
        if failed + unrewarded < self._window:
            return
        if unrewarded:
            raise NothingRewarded(
                f"run {self._stream.run.spec.name!r}: no trajectory of {failed + unrewarded} "
                "groups in a row has a reward; give a scorer that returns one, or return the "
                "reward from the rollout"
            )
        raise await self._stream.nothing_to_train(f"of {failed} groups in a row")

    async def _queue(self, members: Sequence[TrajectoryRow]) -> None:
        task = members[0].key.task
        group = await load_group(self._stream.journal, members)
        samples = [s for trajectory in group.trajectories for s in trajectory.samples]
        check_temperature(samples, self._args.temperature)
        check_vocabulary(samples, self._model.get_input_embeddings().num_embeddings)
        converted = to_trl_async(samples, versions=self._versions, first_group=members[0].ordinal)
        done = self._split.get(task, ())
        rows: dict[int, Any] = {n: fields for n, fields in enumerate(converted) if n not in done}
        self._measure(members, rows)
        if not rows:
            consumer = self._stream.consumer
            await self._stream.journal.dismiss(consumer, [task], reason=NO_REWARD)
            await self._check_alive()
            return
        self._unpulled += 1
        self._counted_from = max(self._counted_from, members[0].ordinal + 1)
        for number, fields in rows.items():
            version = self._version_of(fields["model_version"])
            self.rows.put(
                QueuedRow(
                    {**fields, "model_version": version, "enqueued_at": time.time()},
                    TakenRow(task, number),
                    group=tuple(rows),
                )
            )
        crashpoint.reach("trl.queued")

    def _version_of(self, step: int) -> int:
        """Returns TRL's number for the weights after `step`. It can be computed even for weights of
        an earlier process, because TRL sends weights every `weight_sync_steps` steps and counts how
        often it has sent them."""
        version, live = self._live
        every: int = self._args.weight_sync_steps
        return version - (live // every - step // every)

    def _measure(self, members: Sequence[TrajectoryRow], rows: Mapping[int, Any]) -> None:
        failed = sum(1 for member in members if not member.status.is_outcome)
        self.metrics.put({"rollout/failed_total": float(failed), "rollout/rows": float(len(rows))})
