"""`BufferFeed`: the groups of a `Delivery` into NeMo-RL's replay buffer, each for its step.

NeMo trains a step when its buffer holds the groups that are meant for it (`target_weight_version`),
and takes exactly these. So a step of the ledger is a step of NeMo's. Its checkpoint holds the
buffer, too: what is in there already is not added again.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import ray
import torch
from nemo_rl.distributed.batched_data_dict import BatchedDataDict

from holdfast.convert.nemo import Decode, to_nemo
from holdfast.delivery.delivery import DeliveredBatch, Delivery
from holdfast.records.encoding.declared import checks_arguments
from holdfast.records.errors import HoldfastError, NotTrainable
from holdfast.records.samples.sample import Sample
from holdfast.training.batch import TrainingGroup

FULL_SECONDS = 0.5
"""Between two tries while the buffer is full."""
ANSWER_SECONDS = 600.0
"""For one call of the buffer, which only keeps lists."""
WeightVersion = Callable[[Sequence[Sample]], int]
"""NeMo's number of the oldest weights that a group was sampled with."""


class BufferFeed:
    """`run` it in a thread beside NeMo's training, with a `Delivery` of its own:

        with holdfast.Delivery(journal, run, groups=num_prompts_per_step, checkpoint=step) as found:
            BufferFeed(found, replay_buffer, num_generations=8, max_age_steps=1,
                       weight_version=oldest).run()

    `checkpoint` is NeMo's number of trained steps; commit the same number when its checkpoint is on
    disk: `found.commit(step)`.
    """

    @checks_arguments()
    def __init__(
        self,
        delivery: Delivery,
        buffer: Any,
        *,
        num_generations: int,
        max_age_steps: int,
        weight_version: WeightVersion,
        decode: Decode | None = None,
        wait: float | None = None,
    ):
        """`buffer`: the handle of NeMo's `ReplayBuffer` actor. `num_generations` and
        `max_age_steps` are NeMo's. `wait`: seconds that a full buffer is waited for, longer than a
        step takes; None: no end, as training may stand still for a long time."""
        self._delivery = delivery
        self._buffer = buffer
        self._size = num_generations
        self._max_age = max_age_steps
        self._version = weight_version
        self._decode = decode
        self._wait = wait

    def run(self, steps: int | None = None) -> None:
        """Until the run is over, or so many steps are fed. Waits while the buffer is full."""
        for fed, (_, batch) in enumerate(self._delivery, 1):
            self.add(batch)
            if fed == steps:
                return

    def add(self, batch: DeliveredBatch) -> None:
        """The groups of one step that the buffer does not hold yet. They are added in their order,
        and NeMo takes a step's groups all together: what it holds of a step came first."""
        target = batch.step - 1  # NeMo counts steps from 0.
        groups = batch.groups
        missing = self._call("get_trajectories_needed", target, len(groups), self._max_age)
        for group in groups[len(groups) - missing :]:
            self._add(group, target)

    def _add(self, group: TrainingGroup, target: int) -> None:
        samples = [sample for member in group.trajectories for sample in member.samples]
        version = self._version(samples)
        if target - version > self._max_age:
            raise NotTrainable(
                f"task {group.task!r}: sampled with weights {version}, and NeMo-RL takes none that "
                f"are more than {self._max_age} steps older than step {target}: let fewer rollouts "
                "be under way, or raise max_trajectory_age_steps"
            )
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
        if len(rows) != self._size:
            raise NotTrainable(
                f"task {group.task!r}: it has {len(rows)} valid members, and NeMo-RL trains "
                f"{self._size} of each (num_generations_per_prompt): let the run drop smaller "
                "groups (GroupPolicy(shortfall='drop'))"
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

    def _call(self, method: str, *words: Any) -> Any:
        answer = getattr(self._buffer, method).remote(*words)
        try:
            return ray.get(answer, timeout=ANSWER_SECONDS)
        except TimeoutError as error:
            raise HoldfastError(
                f"NeMo-RL's buffer does not answer: {method}, for {ANSWER_SECONDS:g} seconds"
            ) from error
