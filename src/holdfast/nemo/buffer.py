"""`BufferFeed` puts the groups of a `Delivery` into NeMo-RL's replay buffer, each for its step.

NeMo trains a step when its buffer holds the groups for this step (`target_weight_version`), and
trains exactly these groups. A step of the ledger is therefore a step of NeMo. NeMo's checkpoint
also holds the buffer, but a restore may drop some of its groups. The feed compares the tasks in the
buffer with the tasks of the step, and adds the missing groups.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
import torch
from nemo_rl.distributed.batched_data_dict import BatchedDataDict

from holdfast.convert.checks import check_temperature
from holdfast.convert.nemo import Decode, to_nemo
from holdfast.delivery.delivery import DeliveredBatch, Delivery
from holdfast.nemo.arguments import settings_of
from holdfast.records.encoding.declared import checks_arguments
from holdfast.records.errors import HoldfastError, NotTrainable
from holdfast.records.samples.sample import Sample
from holdfast.training.batch import TrainingGroup

FULL_SECONDS = 0.5
"""The seconds between two attempts to add a group while the buffer is full."""
ANSWER_SECONDS = 600.0
"""The deadline of one call to the buffer, in seconds."""
WeightVersion = Callable[[Sequence[Sample]], int]
"""A function that returns NeMo's number of the oldest weights with which a group was sampled."""


class BufferFeed:
    """Feeds NeMo's buffer. Call `run` in a thread beside NeMo's training, with its own `Delivery`:

      with holdfast.Delivery(journal, run, groups=num_prompts_per_step, checkpoint=step) as found:
          BufferFeed(found, replay_buffer, master_config, weight_version=oldest).run()

    `checkpoint` is the number of steps that NeMo has trained. Commit the same number when NeMo's
    checkpoint is on disk: `found.commit(step)`.
    """

    @checks_arguments()
    def __init__(
        self,
        delivery: Delivery,
        buffer: Any,
        config: Any,
        *,
        weight_version: WeightVersion,
        decode: Decode | None = None,
        wait: float | None = None,
    ):
        """`buffer` is the handle of NeMo's `ReplayBuffer` actor.

        `config` is NeMo's `MasterConfig`; a setting that Holdfast cannot follow raises
        `UsageError`. `wait` is how many seconds to wait while the buffer is full; this should be
        longer than a step takes. With None, there is no limit.
        """
        self._delivery = delivery
        self._buffer = buffer
        self._settings = settings_of(config)
        self._version = weight_version
        self._decode = decode
        self._wait = wait
        self._restored: dict[int, list[str]] | None = None

    def run(self, steps: int | None = None) -> None:
        """Puts groups into the buffer until the run is over, or until `steps` steps are in the
        buffer. Waits while the buffer is full."""
        for fed, (_, batch) in enumerate(self._delivery, 1):
            self.add(batch)
            if fed == steps:
                return

    def add(self, batch: DeliveredBatch) -> None:
        """Adds those groups of one step that the buffer does not hold yet."""
        target = batch.step - 1  # NeMo counts steps from 0.
        if len(batch.groups) != self._settings.prompts:
            raise NotTrainable(
                f"step {target} has {len(batch.groups)} groups, and NeMo-RL waits for "
                f"{self._settings.prompts} (grpo.num_prompts_per_step): give Delivery(groups=…) "
                "the same, and the run a multiple of it"
            )
        held = self._held(target)
        tasks = [group.task for group in batch.groups]
        self._check_held(held, tasks, target)
        for group in batch.groups:
            if group.task not in held:
                self._add(group, target)

    def _held(self, target: int) -> list[str]:
        """Returns the tasks of a step whose groups were in NeMo's restored buffer. Asks the buffer
        only at the first call."""
        if self._restored is None:
            state = self._call("state_dict") if self._call("size") else None
            self._restored = {} if state is None else _tasks_by_step(state, self._settings.max_age)
        return self._restored.get(target, [])

    def _check_held(self, held: Sequence[str], tasks: Sequence[str], target: int) -> None:
        """Raises `NotTrainable` if the buffer holds a group for this step that does not belong to
        it in the ledger, or holds a group twice."""
        for place, task in enumerate(held):
            if task not in tasks or task in held[:place]:
                what = "twice" if task in tasks else "which is not of this step"
                raise NotTrainable(
                    f"NeMo-RL's buffer holds task {task!r} for step {target}, {what}: resume from "
                    "a checkpoint of the training that this journal and consumer belong to, or "
                    "take replay_buffer.pt out of it"
                )

    def _add(self, group: TrainingGroup, target: int) -> None:
        samples = [sample for member in group.trajectories for sample in member.samples]
        version = self._version(samples)
        if target - version > self._settings.max_age:
            raise NotTrainable(
                f"task {group.task!r}: sampled with weights {version}, and NeMo-RL takes none that "
                f"are more than {self._settings.max_age} steps older than step {target}: let fewer "
                "rollouts be under way, or raise max_trajectory_age_steps"
            )
        check_temperature(samples, self._settings.temperature)
        entry = self._entry(group, samples)
        began = time.monotonic()
        while (status := self._call("add", entry, version, target)) == "full":
            self._check_wait(time.monotonic() - began, target)
            time.sleep(FULL_SECONDS)
        if status != "success":
            raise HoldfastError(f"NeMo-RL's buffer answers {status!r:.100} to a group")

    def _check_wait(self, seconds: float, target: int) -> None:
        if self._wait is not None and seconds >= self._wait:
            raise HoldfastError(
                f"NeMo-RL's buffer is full, and took no group of step {target} within "
                f"wait={self._wait:g} seconds: is it being trained?"
            )

    def _entry(self, group: TrainingGroup, samples: Sequence[Sample]) -> dict[str, Any]:
        rows = to_nemo(samples, decode=self._decode, tensors=True)
        if len(rows) != self._settings.generations:
            raise NotTrainable(
                f"task {group.task!r}: it has {len(rows)} valid members, and NeMo-RL trains "
                f"{self._settings.generations} of each (num_generations_per_prompt): let the run "
                "drop smaller groups (GroupPolicy(shortfall='drop'))"
            )
        batch: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
        batch["length"] = torch.tensor(batch["length"])
        batch["loss_multiplier"] = torch.tensor(batch["loss_multiplier"])
        batch["truncated"] = torch.tensor(batch["truncated"], dtype=torch.bool)
        rewards = torch.tensor(batch["total_reward"], dtype=torch.float32)
        batch["total_reward"] = rewards
        metrics = {"holdfast/mean_reward": float(rewards.mean())}
        return {
            "batch": BatchedDataDict(batch),
            "rollout_metrics": metrics,
            "timestamp": time.time(),
        }

    def _call(self, method: str, *arguments: Any) -> Any:
        answer = getattr(self._buffer, method).remote(*arguments)
        try:
            return ray.get(answer, timeout=ANSWER_SECONDS)
        except TimeoutError as error:
            raise HoldfastError(
                f"NeMo-RL's buffer does not answer: {method}, for {ANSWER_SECONDS:g} seconds"
            ) from error


def _tasks_by_step(state: Mapping[str, Any], max_age: int) -> dict[int, list[str]]:
    """Returns, for each step, the tasks in NeMo's buffer. Leaves out groups that NeMo will remove
    as too old."""
    entries = zip(
        state["trajectories"],
        state["trajectory_versions"],
        state["target_weight_versions"],
        strict=True,
    )
    steps: dict[int, list[str]] = {}
    for entry, version, target in entries:
        if target - version <= max_age:
            steps.setdefault(target, []).append(entry["batch"]["task_name"][0])
    return steps
