"""The loop of a training run repeats its stages: batch, step, checkpoint, commit, weights.

Each group is trained exactly once (I6): the ledger reserves a batch for a step, the step is
trained, a checkpoint holds it, and then the ledger commits it. After a restart, training continues
from the newest complete checkpoint, and the ledger is rewound to its step. Later steps are trained
again from recorded rollouts, without new samples.

A step's trajectories are sampled with the step's version of the weights. After a restart, the
engines therefore start only when every step for which the run has a version is trained again.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from msgspec import Struct, structs
from torch import Tensor

from holdfast import crashpoint
from holdfast.engine.connect import Connection
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import Consumer
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.records.errors import Cause, NotTrainable, UsageError
from holdfast.rollout.threads.contain import end_task, to_its_end
from holdfast.training import checkpoint
from holdfast.training.checkpoint import Checkpoint, TrainerState
from holdfast.training.run import weights
from holdfast.training.run.batches import (
    BatchSource,
    NothingValid,
    StepBatch,
    check_rewarded,
    command_for,
    train_on,
)
from holdfast.training.run.evaluation import HeldOut
from holdfast.training.run.folder import CHECKPOINTS, WEIGHTS, OtherTraining
from holdfast.training.run.gap import GapWatch
from holdfast.training.run.metrics import (
    SCORED,
    TrainingMetrics,
    standard_error,
    step_line,
    with_error,
)
from holdfast.training.run.progress import TrainingProgress
from holdfast.training.settings import RateSchedule, TrainingSettings
from holdfast.training.trainer import StepResult, Trainer
from holdfast.weights.sync import WeightSync
from holdfast.weights.version import WeightFolder

Result = TypeVar("Result")


class ServedWeights(Struct, frozen=True):
    """Engines that serve the newest weights, and the function that gives them newer ones."""

    connection: Connection
    sync: WeightSync
    publish: Callable[[WeightFolder], Awaitable[None]]


class Restored(Struct, frozen=True):
    """The point at which training continues."""

    step: int
    notes: tuple[str, ...]
    """Messages about checkpoints that were skipped."""
    train_on: str = ""
    """Advice on how to start a new training from these weights; "" if no step is trained."""
    folder: int = 1
    """The number of the folder in which the checkpoint was made (`TrainingRecord`)."""


class NothingTrainable(NotTrainable):
    """No step is trained yet, and training can never use the trajectories for the first step."""


def check_state(state: TrainerState, settings: TrainingSettings, *, folder: Path, run: str) -> None:
    """Raises `UsageError` if the checkpoint belongs to another run or was made with other settings.

    The number of steps may differ if no trained step depended on it.
    """
    where = f"the checkpoint of step {state.step} in {folder}"
    if state.run != run:
        raise UsageError(f"{where} is of run {state.run!r}, not of {run!r}: give another --out")
    changed = _differences(state.settings, settings.identity)
    if changed and (why := _why_not(state, settings, changed)):
        wanted_rate = settings.trainer.optimizer.learning_rate
        raise OtherTraining(f"{where} {why} or {_train_on(state, folder, wanted_rate=wanted_rate)}")


def _why_not(state: TrainerState, settings: TrainingSettings, changed: list[str]) -> str:
    steps = settings.trainer.steps
    if changed != _differences({"steps": _steps(state)}, {"steps": steps}):
        return f"was made with other settings: {', '.join(changed)}; go on with the same,"
    if settings.trainer.optimizer.schedule is not RateSchedule.CONSTANT:
        return (
            f"was trained with learning rates that go down to 0 at the last step: "
            f"{changed[0]}; go on with the same,"
        )
    if state.step > steps:
        return f"is later than --steps {steps}: give more,"
    return ""


def _steps(state: TrainerState) -> int:
    trainer: Any = state.settings["trainer"]
    return int(trainer["steps"])


def _train_on(state: TrainerState, folder: Path, *, wanted_rate: float | None = None) -> str:
    trainer: Any = state.settings["trainer"]
    rate = trainer["optimizer"]["learning_rate"]
    return train_on(folder / WEIGHTS / state.version, rate, wanted_rate=wanted_rate)


def newest_step(folder: Path, settings: TrainingSettings, *, run: str) -> int:
    """Returns the step of the folder's newest checkpoint, or 0 if there is none. Checks its state
    as `check_state` does, without loading its tensors."""
    state = checkpoint.newest_state(folder / CHECKPOINTS)
    if state is None:
        return 0
    check_state(state, settings, folder=folder, run=run)
    return state.step


def read_restored(folder: Path) -> Restored:
    """Returns the point at which training probably continues. Reads no tensors, so a damaged
    checkpoint counts."""
    state = checkpoint.newest_state(folder / CHECKPOINTS)
    if state is None:
        return Restored(0, ())
    return Restored(state.step, (), _train_on(state, folder), state.folder)


def different_settings(recorded: object, settings: TrainingSettings) -> list[str]:
    """Returns a line for each setting that differs, with both values. Ignores the number of
    steps."""
    now = structs.replace(settings.trainer, steps=1)
    if isinstance(recorded, dict) and isinstance(recorded.get("trainer"), dict):
        recorded = {**recorded, "trainer": {**recorded["trainer"], "steps": 1}}
    return _differences(recorded, structs.replace(settings, trainer=now).identity)


class TrainingState:
    """The trainer with its checkpoints and versions of weights, in a folder of its own."""

    def __init__(self, trainer: Trainer, settings: TrainingSettings, *, folder: Path, run: str):
        self.trainer = trainer
        self.version: WeightFolder | None = None
        self.folder_number = 1
        self.in_use: Callable[[], set[str]] = set
        """Returns the names of the versions whose files an engine may still read."""
        self._settings = settings
        self._folder = folder
        self._run = run
        self._model = weights.digest_of(trainer.network.whole.state_dict())
        self._scores = weights.Scores()
        self._gathered: tuple[int, dict[str, Tensor]] | None = None
        """The weights gathered from all ranks, with their step. They are gathered once per step."""

    def restore(self) -> Restored:
        """Continues from the newest whole checkpoint, if there is one. Raises `UsageError` for a
        checkpoint of another model or run, or with other settings."""
        found = checkpoint.newest(self._folder / CHECKPOINTS)
        if found is None:
            return Restored(0, ())
        saved, problems = found
        state = saved.state
        is_other = state.model != self._model
        # An adapter makes another network from the same model. And by default, another model gets
        # another learning rate.
        if not is_other or state.settings.get("lora") != self._settings.identity.get("lora"):
            check_state(state, self._settings, folder=self._folder, run=self._run)
        if is_other:
            raise OtherTraining(
                f"the checkpoint of step {state.step} in {self._folder} began from another model: "
                "give that one, or another --out"
            )
        self.trainer.restore(saved.tensors["weights"], saved.tensors["optimizer"])
        self._gathered = None
        self.trainer.step_number = state.step
        self.trainer.skipped_updates = state.skipped_updates
        _set_random_state(saved.tensors["random"])
        used = f"step-{state.step:08d}"
        notes = tuple(f"{problem}; the one before it, {used}, is used" for problem in problems)
        return Restored(state.step, notes, _train_on(state, self._folder), state.folder)

    def _weights(self) -> dict[str, Tensor]:
        step = self.trainer.step_number
        if self._gathered is None or self._gathered[0] != step:
            self._gathered = step, self.trainer.weights()
        return self._gathered[1]

    @property
    def bytes_on_disk(self) -> int:
        """The bytes on disk of the first checkpoint and two versions of the weights."""
        network = self.trainer.network
        trained = sum(p.numel() * 4 for p in network.parameters.values())
        model: int = sum(p.numel() * p.element_size() for p in network.module.parameters())
        return 3 * trained + 2 * model  # Weights and two moments, in float32.

    def save(self) -> None:
        assert self.version is not None, "weights have a name before they are saved"
        state = TrainerState(
            run=self._run,
            step=self.trainer.step_number,
            model=self._model,
            settings=self._settings.identity,
            version=self.version.name,
            digest=self.version.digest,
            folder=self.folder_number,
            skipped_updates=self.trainer.skipped_updates,
        )
        tensors = {
            "weights": self._weights(),
            "optimizer": self.trainer.optimizer_state(),
            "random": _random_state(),
        }
        checkpoint.save(
            self._folder / CHECKPOINTS,
            Checkpoint(state, tensors),
            keep=self._settings.keep_checkpoints,
        )

    async def name_weights(self, journal: Journal, consumer: Consumer) -> WeightFolder:
        """Writes the present weights as a folder under a durable name."""
        step = self.trainer.step_number
        digest = await in_thread(lambda: weights.digest_of(self._weights()))
        name = await weights.choose_name(journal, consumer, step, digest)
        parent = self._folder / WEIGHTS
        path = await in_thread(weights.write_folder, parent, name, self.trainer.network)
        await journal.publish_version(
            consumer.run, name, step=step, digest=digest, consumer=consumer
        )
        adapter = None if self.trainer.network.lora is None else path / weights.ADAPTER
        scores = await in_thread(self._scores.of, self.trainer.network)
        before = self.version
        if before is not None and before.digest == digest:
            # The step trained nothing, so there are no two versions to compare.
            scores = structs.replace(scores, before=())
        self.version = WeightFolder(name, path, digest, adapter, scores)
        kept = [name, *([before.name] if before else []), *self.in_use()]
        weights.remove_old(parent, kept)
        return self.version


def _differences(recorded: object, now: object, name: str = "") -> list[str]:
    """Returns a line for each setting that differs: the name of the innermost field and both
    values."""
    if isinstance(recorded, dict) and isinstance(now, dict):
        names = sorted(recorded.keys() | now.keys())
        return [
            line for each in names for line in _differences(recorded.get(each), now.get(each), each)
        ]
    if recorded == now:
        return []
    return [f"{name} was {_text(recorded)}, now {_text(now)}"]


def _text(value: object) -> str:
    """Returns the value of a setting as text. For a dict, the text has each field with its name. An
    empty value is `none`."""
    if isinstance(value, dict):
        return " ".join(f"{name}={_text(each)}" for name, each in value.items()) or "none"
    return "none" if value is None or value == [] else str(value)


class TrainingLoop:
    """Trains until the last step, while the engines work on the run. Once `wants_engines` is set,
    the caller starts the engines and passes them to `use`."""

    def __init__(
        self,
        state: TrainingState,
        batches: BatchSource,
        settings: TrainingSettings,
        *,
        journal: Journal,
        consumer: Consumer,
        trained_before: int,
        on_trained_again: Callable[[int], Awaitable[None]],
        held_out: HeldOut | None,
        metrics: TrainingMetrics,
        progress: TrainingProgress,
        report: Callable[[str], None],
    ):
        """`trained_before` is the last step for which the run has a version of the weights.
        `on_trained_again` is called after each step up to `trained_before`. `held_out` is None if
        there are no evaluations."""
        self._state = state
        self._batches = batches
        self._settings = settings
        self._journal = journal
        self._consumer = consumer
        self._trained_before = min(trained_before, settings.trainer.steps)
        self._on_trained_again = on_trained_again
        self._held_out = held_out
        self._metrics = metrics
        self._progress = progress
        self._report = report
        self._watch = GapWatch(settings, report=report)
        self._engines: asyncio.Future[ServedWeights] = asyncio.get_running_loop().create_future()
        self.wants_engines: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the newest version must be served and rollouts must continue."""
        self.is_stepping = False
        """Whether a step has begun that no durable checkpoint holds yet."""

    async def work(self, done: int) -> None:
        """Trains the steps after step number `done`."""
        try:
            await self._work(done)
        finally:
            await self._batches.close()

    def use(self, engines: ServedWeights) -> None:
        self._engines.set_result(engines)

    async def _served(self) -> ServedWeights:
        """Waits until the engines serve the newest version."""
        if not self.wants_engines.done():
            self.wants_engines.set_result(None)
        return await asyncio.shield(self._engines)

    async def compare(self, served: ServedWeights) -> None:
        """Compares the logprobs of engines and trainer at the longest length of the trial."""
        policy = served.connection.policy
        assert isinstance(policy, EnginePolicy), "made by connect()"
        await self._watch.compare(policy, self._state.trainer, served.sync.dtypes)

    async def _work(self, done: int) -> None:
        # A kill may have come between a step and its evaluation. Step 0 is the untrained model.
        if "eval_reward" not in self._metrics.lines().get(done, {}):
            await self._evaluate_due(done)
        for step in range(done + 1, self._settings.trainer.steps + 1):
            if step > self._trained_before:
                await self._served()
            began = time.monotonic()
            settled = (await self._journal.progress(self._consumer.run)).settled
            self._progress.roll_out(step, steps=self._settings.trainer.steps, settled=settled)
            batch = await self._batch_of(step)
            if batch is None:
                await self._end_early(step - 1)
                return
            self.is_stepping = True
            check_rewarded(batch, self._consumer.run)
            crashpoint.reach("train.batch")
            self._progress.enter(f"step {step}: training on {batch.trajectories} trajectories")
            result = await self._train_beside_questions(step, batch)
            crashpoint.reach("train.stepped")
            self._progress.enter(f"step {step}: saving, and giving the weights to the engine")
            version = await self._state.name_weights(self._journal, self._consumer)
            numbers = _numbers(batch, result, seconds=time.monotonic() - began)
            self._metrics.write(step, numbers)
            if self._is_due(step, self._settings.checkpoint_every):
                await in_thread(self._state.save)
                await self._journal.commit(self._consumer, step)
                crashpoint.reach("train.committed")
            self.is_stepping = False
            if step <= self._trained_before:
                await self._on_trained_again(step)
            await self._journal.renew(self._consumer)  # Another trainer may own the engines by now.
            if self._engines.done():
                await self._engines.result().publish(version)
            crashpoint.reach("train.published")
            self._report(step_line(step, numbers))
            await self._evaluate_due(step)

    async def _train_beside_questions(self, step: int, batch: StepBatch) -> StepResult:
        """Trains one step. Meanwhile, asks the engines for the gap if the step's own tokens cannot
        show it. Raises `GapTooWide` before anything of the step is saved."""
        version, trainer = self._state.version, self._state.trainer
        if not self._engines.done() or version is None:
            return await in_thread(self._train, step, batch)
        served = self._engines.result()
        policy = served.connection.policy
        assert isinstance(policy, EnginePolicy), "made by connect()"
        questions = await self._watch.questions(batch, trainer, version=version)
        asking = asyncio.create_task(
            self._watch.ask(step, questions, policy, version=version, dtypes=served.sync.dtypes),
            name="the gap",
        )
        try:
            result = await in_thread(self._train, step, batch)
            return structs.replace(result, numbers={**result.numbers, **await asking})
        finally:
            await end_task(asking)

    def _train(self, step: int, batch: StepBatch) -> StepResult:
        """Trains one step. Raises `GapTooWide` before anything of the step is saved."""
        version = self._state.version
        assert version is not None, "weights have a name before they are trained"
        result = self._state.trainer.step(batch.groups, version=version.name)
        dtypes = self._engines.result().sync.dtypes if self._engines.done() else ()
        gap = result.numbers.get("gap_mean")
        self._watch.check(step, gap, batch, version=version, dtypes=dtypes)
        return result

    async def _batch_of(self, step: int) -> StepBatch | None:
        """Returns the batch of a step. Adds advice to the errors of the source of batches. The
        advice depends on whether a step is trained, because until then the code may still change.
        """
        try:
            return await self._batches.of_step(step, self._roll_out)
        except NotTrainable as error:
            why = f"{error}; what is recorded so is never trained, whatever the code is now"
            if step > 1:
                raise NotTrainable(f"{why}: {self._train_on()}") from error
            run = self._consumer.run.spec.name
            remove = command_for("rm", run, self._journal)
            raise NothingTrainable(
                f"{why}: correct it, then {remove} and the same command, or give another --run "
                "and --out"
            ) from error
        except NothingValid as error:
            way_on = "once the reason is gone, add --retry-failed"
            if step > 1 and error.by is Cause.CODE:
                way_on = (
                    "a training of which a step is trained does not go on with other code: "
                    f"correct it, and {self._train_on()}"
                )
            raise NothingValid(f"{error}; {way_on}", by=error.by) from error

    async def _roll_out(self) -> None:
        """Waits until the engines serve the newest weights, because a batch waits for rollouts."""
        if not self.wants_engines.done():
            self._report(
                f"records of steps that were trained before are gone, and step "
                f"{self._state.trainer.step_number + 1} needs rollouts again: rollouts of later "
                "steps go on with the same weights"
            )
        await self._served()

    def _train_on(self) -> str:
        assert self._state.version is not None, "the engines serve it"
        rate = self._settings.trainer.optimizer.learning_rate
        return train_on(self._state.version.path, rate)

    async def _end_early(self, last: int) -> None:
        """Saves and commits the last step, because no more groups will arrive."""
        self._report(f"the stream of groups has ended after step {last}")
        if last and not self._is_due(last, self._settings.checkpoint_every):
            await in_thread(self._state.save)
            await self._journal.commit(self._consumer, last)

    def _is_due(self, step: int, every: int) -> bool:
        return step % every == 0 or step == self._settings.trainer.steps

    async def _evaluate_due(self, step: int) -> None:
        """Evaluates the weights after a step, if an evaluation is due. For a step that is trained
        again, only uses a recorded evaluation, because the engines may have a later version."""
        if self._held_out is None or not self._is_due(step, self._settings.eval_every):
            return
        assert self._state.version is not None, "weights have a name before they are evaluated"
        version = self._state.version.name
        held_out = await self._held_out.recorded(version)
        if held_out is None and step >= self._trained_before:
            connection = (await self._served()).connection
            progress = self._progress.evaluate(step)
            held_out = await self._held_out.evaluate(
                step, version, connection, report=self._report, progress=progress
            )
        if held_out is not None:
            self._metrics.write(step, held_out.numbers)
            self._report(f"step {step:<4}  held out {with_error(held_out.reward, held_out.error)}")


async def in_thread(function: Callable[..., Result], *arguments: Any) -> Result:
    """Runs a function in a thread. If the caller is cancelled, it still waits until the thread has
    ended, unlike with `asyncio.to_thread`."""
    return await to_its_end(asyncio.to_thread(function, *arguments))


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
    error = standard_error(batch.rewards_by_group)
    return {
        "reward": sum(rewards) / len(rewards) if rewards else 0.0,
        **({} if error is None else {"reward_error": error}),
        "loss": result.loss,
        "groups_informative": batch.informative,
        "groups_drawn": batch.drawn,
        "trajectories": batch.trajectories,
        "trajectories_failed": batch.failed,
        "tokens": result.tokens,
        "sampled_tokens": sum(t.sampled_tokens for g in batch.sampled for t in g.trajectories),
        "updates": result.updates,
        "skipped_updates": result.skipped_updates,
        "seconds": seconds,
        "trainer_seconds": result.seconds,
        **result.numbers,
        **batch.numbers,
        **{f"{SCORED}{name}": value for name, value in batch.metrics.items()},
    }
