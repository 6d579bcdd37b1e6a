"""`async_rollouts` gives `AsyncGRPOTrainer` its rollout worker, weight transfer and callback.

A checkpoint may be written when only a part of a group is trained. Its `trainer_state.json` names
the groups and rows that were trained, which are then committed to the ledger. After a resume, the
trainer gets exactly the remaining rows: groups that it had taken but not trained, and the missing
rows of a group that it had trained in part.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

from holdfast import crashpoint
from holdfast.delivery.taken_rows import TakenRow, TakenRows
from holdfast.delivery.thread import call_at_exit
from holdfast.engine.scoring.scorer import GroupScorer, PointScorer
from holdfast.engine.settings import Settings
from holdfast.records.encoding.declared import checks_arguments
from holdfast.records.epochs import EpochStream
from holdfast.records.errors import HoldfastError, UsageError
from holdfast.records.group import GroupPolicy
from holdfast.records.sampling import Sampling
from holdfast.records.task import as_tasks
from holdfast.trl.arguments import check_arguments
from holdfast.trl.async_session import AsyncSession
from holdfast.trl.session import TrlOptions

LEFT_OUT = "left out by TRL: older than max_staleness, or longer than token_budget"


class AsyncRollouts(Struct, frozen=True):
    """The three parts of a training for `AsyncGRPOTrainer`, which needs all three."""

    worker: "RolloutWorker"
    weight_transfer: "WeightTransfer"
    callback: "HoldfastCallback"


@checks_arguments(own="scorer journal policy")
def async_rollouts(
    rollout: object,
    scorer: "PointScorer | GroupScorer | None" = None,
    *,
    journal: Path | str,
    rows: Any,
    run: str = "trl",
    policy: str | Sequence[str] = (),
    api_key: str | None = None,
    sampling: Sampling | None = None,
    group: GroupPolicy | None = None,
    settings: Settings | None = None,
    shuffle: bool = False,
    out: Path | str | None = None,
    log_requests: bool = False,
    report: Callable[[str], None] = lambda line: None,
) -> AsyncRollouts:
    """Returns the three parts of one training; give all three to `AsyncGRPOTrainer`:

      found = holdfast.trl.async_rollouts(solve, score, journal="holdfast.db", rows=rows)
      trainer = AsyncGRPOTrainer(
          model, args=args, train_dataset=rows, rollout_worker=found.worker,
          weight_transfer=found.weight_transfer, callbacks=[found.callback],
      )

    `rows` is the trainer's data set. It is rolled out epoch after epoch, in its order or, with
    `shuffle`, shuffled. The other arguments mean the same as in `rollouts`. A trajectory with
    several branches has one row for each branch.
    """
    options = TrlOptions(
        rollout=rollout,
        scorer=scorer,
        journal=journal,
        run=run,
        policy=policy,
        api_key=api_key,
        sampling=sampling,
        group=group,
        settings=settings,
        out=out,
        log_requests=log_requests,
        report=report,
    )
    if not hasattr(rows, "__len__"):
        raise UsageError(
            "the data set is a stream (IterableDataset), in which no row can be found again after "
            "a restart: give one with a length"
        )
    training = _Training(options, [dict(row) for row in rows], shuffle=shuffle)
    return AsyncRollouts(
        RolloutWorker(training), WeightTransfer(training), HoldfastCallback(training)
    )


class _Training:
    """The state that the three parts share, such as the session of a training that has begun."""

    def __init__(self, options: TrlOptions, rows: Sequence[dict[str, object]], *, shuffle: bool):
        self.options = options
        self._rows = rows
        self._shuffle = shuffle
        self._session: AsyncSession | None = None
        self.state: Any = None
        """The `TrainerState` of transformers, which knows the step."""
        self.taken = TakenRows()
        self.version = 0

    @property
    def session(self) -> AsyncSession:
        if self._session is None:
            raise UsageError(
                "training has not begun: give AsyncGRPOTrainer all three parts of async_rollouts "
                "(rollout_worker, weight_transfer, callbacks=[…])"
            )
        return self._session

    def open(self, args: Any, state: Any, *, model: Any, tokenizer: Any, saved: Any) -> None:
        self.close()
        self.state = state
        self.taken = TakenRows(saved["split"])
        self._session = AsyncSession(
            self.options,
            EpochStream(as_tasks(self._rows), seed=args.seed, shuffle=self._shuffle),
            args=args,
            model=model,
            tokenizer=tokenizer,
            step=state.global_step,
            trained=[(task, step) for task, step in saved["trained"]],
            split=saved["split"],
        )
        call_at_exit(self.close)

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()


class RolloutWorker:
    """Implements TRL's `RolloutWorkerProtocol`: puts rows on `rollout_buffer` while training
    continues."""

    def __init__(self, training: _Training):
        self._training = training
        self.rollout_buffer = _Buffer(training)
        self.metrics_queue = _Metrics(training)

    def start(self) -> None:
        """Starts the rollouts. Call it only after the first weights were sent."""
        if not self._training.version:
            raise UsageError(
                "no weights were sent to the engines: give AsyncGRPOTrainer the weight_transfer of "
                "the same async_rollouts"
            )
        self._training.session.start()

    def stop(self) -> None:
        self._training.close()

    def update_model_version(self, model_version: int) -> None:
        self._training.version = model_version
        self._training.session.go_live(model_version, step=self._training.state.global_step)

    def check_health(self, stale_after_s: float) -> None:
        """Raises the error that ended the rollouts. Also raises an error if the event loop of the
        rollouts has been blocked for `stale_after_s` seconds."""
        session = self._training.session
        session.check()
        age = time.monotonic() - session.beat
        if age > stale_after_s:
            raise HoldfastError(
                f"rollouts were not looked after for {age:.0f} s (heartbeat_stale_after_s is "
                f"{stale_after_s:g}): something blocks the event loop of the rollouts"
            )


class _Buffer:
    """The queue from which TRL takes rows. It records which rows TRL took."""

    def __init__(self, training: _Training):
        self._training = training

    def get(self, block: bool = True, timeout: float | None = None) -> RolloutSample:
        training = self._training
        queued = training.session.rows.get(block, timeout)
        training.taken.take(queued.row, group=queued.group)
        if queued.row.number == queued.group[0]:
            training.session.pulled_group()
        metrics = _RowMetrics(queued.row, queued.fields["metrics"])
        return RolloutSample(**{**queued.fields, "metrics": metrics})

    def qsize(self) -> int:
        return self._training.session.rows.qsize()


class _RowMetrics(dict[str, float]):
    """The metrics of a sample, together with its row. TRL passes this object on unchanged, so that
    the row is known when TRL trains the sample."""

    def __init__(self, row: TakenRow, values: Mapping[str, float]):
        super().__init__(values)
        self.row = row


class _Metrics:
    """The measurements of the rollouts. TRL takes them when it logs."""

    def __init__(self, training: _Training):
        self._training = training

    def get_nowait(self) -> dict[str, float]:
        return self._training.session.metrics.get_nowait()


class WeightTransfer:
    """Implements TRL's `WeightTransferProtocol`, by the best way that the engines offer.

    Engines are paused only during `send_weights`, for as long as this way needs. If an engine does
    not take a version, or serves it wrongly, it gets no calls until it has the version.
    """

    def __init__(self, training: _Training):
        self._training = training

    def init_weight_transfer(self) -> None:
        """Raises `UsageError` if the trainer was not given the callback."""
        _ = self._training.session

    def pause(self) -> None:
        """Does nothing: `send_weights` pauses the engines after the files are written."""

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        training = self._training
        training.session.publish(dict(iterator), step=training.state.global_step)

    def resume(self) -> None:
        """Does nothing: an engine resumes as soon as it has received a version."""

    def destroy(self) -> None:
        self._training.close()


class HoldfastCallback(TrainerCallback, ExportableState):  # type: ignore[misc] # They have no types.
    """Connects the trainer's checkpoints to the ledger: a checkpoint commits the groups that it
    holds."""

    def __init__(self, training: _Training):
        self._training = training
        self._saved: list[tuple[str, int]] = []

    # --- what is written into a checkpoint

    def state(self) -> dict[str, Any]:
        """Returns the groups and rows that were trained, for a checkpoint that is being written."""
        taken = self._training.taken
        self._saved = taken.ended()
        return {
            "args": {},
            "attributes": {"trained": [list(pair) for pair in self._saved], "split": taken.split()},
        }

    # --- what transformers calls

    def on_init_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        _check_arguments(args, has_engines=bool(self._training.options.address.urls))

    def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        saved = state.stateful_callbacks.setdefault(type(self).__name__, self.state())
        training = self._training
        training.open(
            args,
            state,
            model=rest["model"],
            tokenizer=rest["processing_class"],
            saved=saved["attributes"],
        )
        loader = rest["train_dataloader"].base_dataloader
        collate = loader.collate_fn
        # TRL ends its last epoch by the size of this set, which is empty after a resume.
        collate.groups_trained.update(training.session.trained_groups())
        loader.collate_fn = partial(self._form, collate)

    def _form(self, collate: Callable[[Any], Any], rows: list[Any]) -> Any:
        """Records which rows are in TRL's next micro-batch, and dismisses the rows that TRL left
        out."""
        training = self._training
        (ranks,) = rows
        packed = [sample["metrics"].row for rank in ranks for sample in rank.samples]
        step = training.state.global_step + 1
        if left_out := training.taken.form(packed, step=step):
            training.session.dismiss(left_out, reason=LEFT_OUT)
        return collate(rows)

    def on_substep_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        self._training.taken.train(step=state.global_step + 1)

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        self._training.taken.train(step=state.global_step)
        crashpoint.reach("trl.trained")

    def on_save(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        training = self._training
        training.session.commit(state.global_step, self._saved)
        training.taken.forget(self._saved)


def _check_arguments(args: Any, *, has_engines: bool) -> None:
    check_arguments(args)
    if args.world_size > 1:
        raise UsageError(
            f"holdfast.trl rolls out for one process, and this trainer has {args.world_size}: "
            "train with one, or use another trainer (docs/trainers.md)"
        )
    if args.restore_callback_states_from_checkpoint:
        raise UsageError(
            "restore_callback_states_from_checkpoint would make the callback anew, without its "
            "journal: leave it out; what a checkpoint holds is read without it"
        )
    if args.token_budget is None and not has_engines:
        raise UsageError(
            "without a token_budget, TRL asks a vLLM server for it, and the embedded engine is "
            "none: give AsyncGRPOConfig(token_budget=…), or 0 for batches by count"
        )
