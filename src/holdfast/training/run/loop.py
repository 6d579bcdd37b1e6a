"""The loop of a training run: batch, step, checkpoint, commit, weights; again.

Exactly once (I6): the ledger reserves a batch for a step, the step is trained, a checkpoint holds
it, and then the ledger commits it. After a restart the newest whole checkpoint is the truth, and
the ledger is rewound to it: later steps are trained again from recorded rollouts, and nothing is
generated again.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import torch
from msgspec import Struct
from torch import Tensor

from holdfast import crashpoint
from holdfast.journal.journal import Consumer, Journal
from holdfast.records.errors import UsageError
from holdfast.training import checkpoint
from holdfast.training.checkpoint import Checkpoint, TrainerState
from holdfast.training.run import weights
from holdfast.training.run.batches import Batches, StepBatch, check_rewarded
from holdfast.training.run.folder import CHECKPOINTS, WEIGHTS
from holdfast.training.run.metrics import TrainingMetrics, step_line
from holdfast.training.run.weights import WeightFolder
from holdfast.training.settings import TrainingSettings
from holdfast.training.trainer import StepResult, Trainer

Result = TypeVar("Result")
Publish = Callable[[WeightFolder], Awaitable[None]]
Evaluate = Callable[[int, str], Awaitable[float | None]]
"""On held-out tasks, after a step, with a version; None where it failed, which was reported."""


class Restored(Struct, frozen=True):
    """Where training goes on."""

    step: int
    notes: tuple[str, ...]
    """What is to be said of checkpoints that were passed over."""


class TrainingState:
    """The trainer with its checkpoints and versions of weights, in a folder of its own."""

    def __init__(self, trainer: Trainer, settings: TrainingSettings, *, folder: Path, run: str):
        self.trainer = trainer
        self.version: WeightFolder | None = None
        self._settings = settings
        self._folder = folder
        self._run = run
        self._model = weights.digest_of(trainer.network.module.state_dict())

    def restore(self) -> Restored:
        """Goes on from the newest whole checkpoint, if there is one. Raises `UsageError` for one of
        another model, run or settings."""
        found = checkpoint.newest(self._folder / CHECKPOINTS)
        if found is None:
            return Restored(0, ())
        saved, problems = found
        state = saved.state
        where = f"the checkpoint of step {state.step} in {self._folder}"
        if state.run != self._run:
            raise UsageError(
                f"{where} is of run {state.run!r}, not of {self._run!r}: give another --out"
            )
        if state.model != self._model:
            raise UsageError(f"{where} began from another model: give that one, or another --out")
        if state.settings != self._settings.identity:
            raise UsageError(f"{where} was made with other settings: {self._changes(state)}")
        self.trainer.optimizer.restore(saved.tensors["weights"], saved.tensors["optimizer"])
        self.trainer.step_number = state.step
        self.trainer.skipped_updates = state.skipped_updates
        _set_random_state(saved.tensors["random"])
        notes = tuple(f"{problem}; the one before it is used" for problem in problems)
        return Restored(state.step, notes)

    def _changes(self, state: TrainerState) -> str:
        now = self._settings.identity
        changed = [name for name in now if state.settings.get(name) != now[name]]
        return ", ".join(changed) + "; go on with the same, or give another --out and --run"

    @property
    def bytes_on_disk(self) -> int:
        """Of the first checkpoint and of two versions of the weights."""
        trained = sum(t.numel() * t.element_size() for t in self.trainer.optimizer.weights.values())
        module = self.trainer.network.module
        model: int = sum(p.numel() * p.element_size() for p in module.parameters())
        return 3 * trained + 2 * model  # Weights and two moments.

    def save(self) -> None:
        assert self.version is not None, "weights have a name before they are saved"
        optimizer = self.trainer.optimizer
        state = TrainerState(
            run=self._run,
            step=self.trainer.step_number,
            model=self._model,
            settings=self._settings.identity,
            version=self.version.name,
            digest=self.version.digest,
            skipped_updates=self.trainer.skipped_updates,
        )
        tensors = {
            "weights": optimizer.weights,
            "optimizer": optimizer.state(),
            "random": _random_state(),
        }
        checkpoint.save(
            self._folder / CHECKPOINTS,
            Checkpoint(state, tensors),
            keep=self._settings.keep_checkpoints,
        )

    async def name_weights(self, journal: Journal, consumer: Consumer) -> WeightFolder:
        """The weights as they are now, as a folder with a name that is durable."""
        step = self.trainer.step_number
        digest = await in_thread(_digest, self.trainer)
        name = await weights.choose_name(journal, consumer, step, digest)
        parent = self._folder / WEIGHTS
        path = await in_thread(weights.write_folder, parent, name, self.trainer.network)
        await journal.publish_version(
            consumer.run, name, step=step, digest=digest, consumer=consumer
        )
        before, self.version = self.version, WeightFolder(name, path, digest)
        weights.remove_old(parent, [name, *([before.name] if before else [])])
        return self.version


def _digest(trainer: Trainer) -> str:
    return weights.digest_of(dict(trainer.optimizer.weights))


class TrainingLoop:
    """Trains until the last step. The engine works on the run beside it."""

    def __init__(
        self,
        state: TrainingState,
        batches: Batches,
        settings: TrainingSettings,
        *,
        journal: Journal,
        consumer: Consumer,
        publish: Publish,
        evaluate: Evaluate | None,
        metrics: TrainingMetrics,
        report: Callable[[str], None],
    ):
        self._state = state
        self._batches = batches
        self._settings = settings
        self._journal = journal
        self._consumer = consumer
        self._publish = publish
        self._evaluate = evaluate
        self._metrics = metrics
        self._report = report

    async def work(self, done: int) -> None:
        """The steps after `done`, counted from 1."""
        await self._evaluate_again(done)
        for step in range(done + 1, self._settings.trainer.steps + 1):
            began = time.monotonic()
            batch = await self._batches.of_step(step)
            check_rewarded(batch, self._consumer.run)
            crashpoint.reach("train.batch")
            result = await in_thread(self._state.trainer.step, batch.groups)
            crashpoint.reach("train.stepped")
            version = await self._state.name_weights(self._journal, self._consumer)
            numbers = _numbers(batch, result, seconds=time.monotonic() - began)
            self._metrics.write(step, numbers)
            if self._is_due(step, self._settings.checkpoint_every):
                await in_thread(self._state.save)
                await self._journal.commit(self._consumer, step)
                crashpoint.reach("train.committed")
            await self._journal.renew(self._consumer)  # Engines may be another trainer's by now.
            await self._publish(version)
            crashpoint.reach("train.published")
            self._report(step_line(step, numbers))
            await self._evaluate_due(step)

    def _is_due(self, step: int, every: int) -> bool:
        return step % every == 0 or step == self._settings.trainer.steps

    async def _evaluate_again(self, step: int) -> None:
        """A kill may have come between a step and its evaluation; step 0 is the model as it was."""
        if "eval_reward" not in self._metrics.lines().get(step, {}):
            await self._evaluate_due(step)

    async def _evaluate_due(self, step: int) -> None:
        if self._evaluate is None or not self._is_due(step, self._settings.eval_every):
            return
        assert self._state.version is not None, "the engines serve it"
        reward = await self._evaluate(step, self._state.version.name)
        if reward is not None:
            self._metrics.write(step, {"eval_reward": reward})
            self._report(f"step {step:<4}  held out {reward:.3f}")


async def in_thread(function: Callable[..., Result], *arguments: Any) -> Result:
    """As `asyncio.to_thread`, but a cancelled caller waits until the thread is done: nobody is left
    computing."""
    running = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({running})
        _ = running.cancelled() or running.exception()
        raise


def _random_state() -> dict[str, Tensor]:
    found = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states = torch.cuda.get_rng_state_all()
        found |= {f"cuda:{number}": state for number, state in enumerate(states)}
    return found


def _set_random_state(states: Mapping[str, Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    for number in range(torch.cuda.device_count()):
        if (state := states.get(f"cuda:{number}")) is not None:
            torch.cuda.set_rng_state(state, number)


def _numbers(batch: StepBatch, result: StepResult, *, seconds: float) -> dict[str, float]:
    rewards = batch.rewards
    return {
        "reward": sum(rewards) / len(rewards) if rewards else 0.0,
        "loss": result.loss,
        "groups_informative": batch.informative,
        "groups_drawn": batch.drawn,
        "trajectories": batch.trajectories,
        "trajectories_failed": batch.failed,
        "tokens": result.tokens,
        "skipped_updates": result.skipped_updates,
        "seconds": seconds,
        "trainer_seconds": result.seconds,
        **result.numbers,
    }
