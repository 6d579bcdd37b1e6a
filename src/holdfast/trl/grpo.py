"""Gives `GRPOTrainer` its `rollouts` and its `reward`.

A step of the ledger is one generation of the trainer, which the trainer uses for one or several
optimizer steps. A checkpoint commits the generations whose optimizer steps are all done. After a
resume, TRL asks for the other generations again, and gets them from the journal.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from enum import StrEnum
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from holdfast import crashpoint
from holdfast.convert.checks import check_temperature, check_vocabulary
from holdfast.convert.selection import Branches, chosen
from holdfast.convert.trl import to_trl
from holdfast.delivery.stream import RolloutStream, StepGroup
from holdfast.delivery.thread import call_at_exit
from holdfast.delivery.weights import ModelWeights, read_weights
from holdfast.engine.scoring.scorer import GroupScorer, PointScorer
from holdfast.engine.settings import Settings
from holdfast.records.encoding.declared import checks_arguments
from holdfast.records.errors import UsageError
from holdfast.records.group import GroupPolicy
from holdfast.records.samples.sample import Sample
from holdfast.records.samples.version import WeightVersion
from holdfast.records.sampling import Sampling
from holdfast.records.task import Task
from holdfast.training.run.serving import MODEL
from holdfast.trl.rows import RowTasks, step_tasks
from holdfast.trl.session import TrlOptions, TrlSession


class OtherWeights(StrEnum):
    """What happens to a recorded step that other weights than the trainer's have sampled."""

    REFUSE = "refuse"
    ACCEPT = "accept"
    """For a trainer that does not compute the same step twice with the same bits. After a kill, its
    retrained weights are only close to the weights that sampled the step."""


def reward(holdfast_reward: Sequence[float | None], **columns: object) -> list[float | None]:
    """Returns the rewards from the rollouts' scorer. TRL leaves a reward of None out of the
    baseline."""
    return list(holdfast_reward)


@checks_arguments(own="scorer journal policy branches other_weights")
def rollouts(
    rollout: object,
    scorer: "PointScorer | GroupScorer | None" = None,
    *,
    journal: Path | str,
    run: str = "trl",
    policy: str | Sequence[str] = (),
    api_key: str | None = None,
    sampling: Sampling | None = None,
    group: GroupPolicy | None = None,
    branches: str = Branches.REFUSE,
    other_weights: str = OtherWeights.REFUSE,
    settings: Settings | None = None,
    rows: Any = None,
    out: Path | str | None = None,
    log_requests: bool = False,
    report: Callable[[str], None] = lambda line: None,
) -> "TrlRollouts":
    """Returns a `rollout_func` for `GRPOTrainer`; its reward function is `holdfast.trl.reward`.

    `policy` has the addresses of engines that serve the trainer's model; without addresses, the
    embedded engine starts. Before each step that is not recorded yet, the engines get the weights.

    By default, `sampling` comes from the trainer's arguments, `rows` is the trainer's data set, and
    `out` is the folder `holdfast` in its `output_dir`. `out` holds weights on their way and the
    engine's log. TRL has one row per trajectory; of a trajectory with several branches,
    `branches="longest"` keeps only the longest. A recorded step is answered from the journal if the
    trainer's weights sampled it; with `other_weights="accept"`, it is answered whatever weights
    sampled it. With `log_requests`, the embedded engine logs the id of each request.
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
    return TrlRollouts(
        options,
        branches=chosen(Branches, "branches", branches),
        other_weights=chosen(OtherWeights, "other_weights", other_weights),
        rows=rows,
    )


class TrlRollouts:
    """The `rollout_func` that TRL calls with prompts and the trainer. Its first call opens the
    journal. When the training ends, everything is closed."""

    def __init__(
        self, options: TrlOptions, *, branches: Branches, other_weights: OtherWeights, rows: Any
    ):
        self.__name__ = "holdfast_rollouts"
        self._options = options
        self._branches = branches
        self._other_weights = other_weights
        self._rows = rows
        self._session: _Session | None = None
        self._ledger = _Ledger(self)
        self.left_out_branches = 0
        """The number of branches that were left out since this object was created."""

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        """Returns the rows of the trainer's present step. If the step is recorded, the rows come
        from the journal."""
        if self._session is None:
            self._session = self._open(trainer)
        is_training = bool(trainer.model.training)
        size = trainer.num_generations if is_training else trainer.num_generations_eval
        session = self._session
        try:
            if is_training:
                groups = session.train(prompts, trainer, size=size)
            else:
                groups = session.evaluate(prompts, trainer, size=size)
            return self._columns(groups, trainer, size=size)
        except Exception:
            self.close()  # The error ends the training without TRL's callbacks.
            raise

    def _columns(self, groups: list[StepGroup], trainer: Any, *, size: int) -> dict[str, list[Any]]:
        samples = [sample for group in groups for sample in group.filled()]
        _check(samples, trainer)
        batch = to_trl(samples, num_generations=size, branches=self._branches)
        self.left_out_branches += batch.left_out
        columns = dict(batch.columns)
        columns.pop("holdfast")
        crashpoint.reach("trl.answered")
        return columns

    def _open(self, trainer: Any) -> "_Session":
        _check_trainer(trainer)
        rows = RowTasks(self._rows if self._rows is not None else trainer.train_dataset)
        session = _Session(self._options, rows, trainer, other_weights=self._other_weights)
        if self._ledger not in trainer.callback_handler.callbacks:
            trainer.add_callback(self._ledger)
        call_at_exit(self.close)
        return session

    def commit(self, optimizer_steps: int) -> None:
        """Commits the generations that `optimizer_steps` steps have trained. Called when the
        trainer's checkpoint is on disk. Does nothing if nothing was rolled out."""
        if self._session is not None:
            self._session.commit(optimizer_steps)

    def close(self) -> None:
        """Stops the engine and gives the leases back. A later call starts the engine and takes the
        leases again."""
        session, self._session = self._session, None
        if session is not None:
            session.close()


def _check_trainer(trainer: Any) -> None:
    if trainer.accelerator.num_processes > 1:
        raise UsageError(
            f"holdfast.trl rolls out for one process, and this trainer has "
            f"{trainer.accelerator.num_processes}: train with one, or use another trainer "
            "(docs/trainers.md)"
        )
    if trainer.tools or getattr(trainer, "environment_factories", None):
        raise UsageError(
            "the trainer has tools or environments of its own, which would be called on finished "
            "rollouts: leave them to the rollout function"
        )
    check_reward_functions(trainer.reward_funcs)


def check_reward_functions(functions: Sequence[object]) -> None:
    """Raises `UsageError` for any reward function other than `reward`. TRL adds the rewards of all
    functions up, so with another function a failed trajectory would count in the baseline."""
    others = [function for function in functions if function is not reward]
    if others or not functions:
        names = ", ".join(getattr(each, "__name__", type(each).__name__) for each in others)
        raise UsageError(
            "reward_funcs is holdfast.trl.reward alone, not "
            f"{names or 'nothing'}: TRL would give a reward to rollouts that failed, too; let the "
            "scorer of holdfast.trl.rollouts return the whole reward"
        )


def _check(samples: list[Sample], trainer: Any) -> None:
    real = [sample for sample in samples if not sample.remove_sample]
    check_temperature(real, trainer.args.temperature)
    embeddings = trainer.accelerator.unwrap_model(trainer.model).get_input_embeddings()
    check_vocabulary(real, embeddings.num_embeddings)


class _Ledger(TrainerCallback):  # type: ignore[misc] # transformers has no types here.
    """The callback that commits to the ledger whenever the trainer saves a checkpoint."""

    def __init__(self, owner: TrlRollouts):
        self._owner = owner

    def on_save(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        self._owner.commit(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        self._owner.close()


class _Session(TrlSession):
    """One training of `GRPOTrainer`."""

    def __init__(
        self, options: TrlOptions, rows: RowTasks, trainer: Any, *, other_weights: OtherWeights
    ):
        super().__init__(
            options,
            trainer.args,
            training=MODEL,
            samples=trainer.num_generations,
            model=trainer.accelerator.unwrap_model(trainer.model),
            tokenizer=trainer.processing_class,
        )
        self._other_weights = other_weights
        self._rows = rows
        self._trainer = trainer
        self._eval: RolloutStream | None = None
        self._evaluation = (-1, 0)
        self._eval_rows: RowTasks | None = None
        done = trainer.state.global_step
        self._begin(self._stream.open(self._trained(done), begins=not done))

    def _window(self) -> int:
        """Returns the number of micro-steps in which a generation is trained."""
        return int(self._trainer.args.steps_per_generation * self._trainer.num_iterations)

    def _trained(self, optimizer_steps: int) -> int:
        """Returns the number of generations that are completely trained after `optimizer_steps`
        steps."""
        accumulation = self._trainer.args.gradient_accumulation_steps
        return int(optimizer_steps * accumulation) // self._window()

    def _sampled_at(self, generation: int) -> int:
        """Returns the number of the optimizer step whose weights sample this generation."""
        accumulation = int(self._trainer.args.gradient_accumulation_steps)
        return math.ceil((generation - 1) * self._window() / accumulation)

    # --- what TRL calls

    def train(self, prompts: list[Any], trainer: Any, *, size: int) -> list[StepGroup]:
        generation = self._trained(trainer.state.global_step) + 1
        tasks = step_tasks(self._rows, prompts, step=f"step-{generation}", size=size)
        at = self._sampled_at(generation)
        return self._thread.call(self._roll_out(self._stream, generation, tasks, at=at))

    def evaluate(self, prompts: list[Any], trainer: Any, *, size: int) -> list[StepGroup]:
        """Evaluates the prompts in a separate run, from which nothing is trained."""
        if self._eval is None:
            name = f"{self._stream.consumer.run.spec.name}-eval"
            self._eval = self._new_stream(name, size)
            self._thread.call(self._eval.open(0))
            rows = trainer.eval_dataset
            self._eval_rows = RowTasks(rows) if rows is not None else self._rows
        assert self._eval_rows is not None, "it was just made"
        before, batches = self._evaluation
        now = trainer.state.global_step
        self._evaluation = (now, batches + 1 if before == now else 1)
        step = f"eval-{now}-{self._evaluation[1]}"
        tasks = step_tasks(self._eval_rows, prompts, step=step, size=size)
        return self._thread.call(self._roll_out(self._eval, None, tasks, at=now))

    def commit(self, optimizer_steps: int) -> None:
        """Commits the generations that `optimizer_steps` steps have trained. Called when the
        trainer's checkpoint is on disk."""
        self._thread.call(self._stream.commit(self._trained(optimizer_steps)))

    async def _close(self) -> None:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._stream.close)
            if self._eval is not None:
                stack.push_async_callback(self._eval.close)

    # --- the weights

    async def _roll_out(
        self, stream: RolloutStream, step: int | None, tasks: Sequence[Task], *, at: int
    ) -> list[StepGroup]:
        weights = await read_weights(self._trainer.accelerator.unwrap_model(self._trainer.model))
        await self._check_sampled(stream, tasks, weights, at=at)
        if not await stream.is_recorded(tasks):
            await self._publish(await self._name(weights, self._trainer.state.global_step))
            crashpoint.reach("trl.published")
            await self._stream.start()  # The stream's engine serves evaluations, too.
        return await stream.roll_out(step, tasks)

    async def _check_sampled(
        self, stream: RolloutStream, tasks: Sequence[Task], weights: ModelWeights, *, at: int
    ) -> None:
        """Raises `UsageError` if any of these tasks was sampled with other weights than the
        trainer's."""
        names = await stream.sampled_by(tasks)
        if not names or self._other_weights is OtherWeights.ACCEPT:
            return
        now = self._trainer.state.global_step
        versions = await self._stream.journal.versions(self._stream.run)
        others = [
            version.name
            for version in versions
            if version.name in names and not _is_own(version, weights.digest, at=at, now=now)
        ]
        if others:
            raise UsageError(
                f"run {stream.run.spec.name!r}: what the journal has for this step ({tasks[0].id}) "
                f"was sampled with other weights ({', '.join(others)}) than the trainer's: resume "
                "from the checkpoint of that training, or give another run, or another journal; "
                "where a step that is trained again after a kill does not give the same bits, "
                "other_weights='accept'"
            )


def _is_own(version: WeightVersion, digest: str, *, at: int, now: int) -> bool:
    """Returns whether a version has the trainer's weights. If some optimizer steps of a generation
    are done (`at` is before `now`), the weights that sampled it no longer exist, and the version is
    recognized by its step instead of its digest."""
    return version.digest == digest or (at < now and version.step == at)
