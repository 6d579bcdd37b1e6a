"""The row that `AsyncGRPOTrainer` takes off the queue of its rollout worker."""

from dataclasses import dataclass
from typing import Any


@dataclass
class RolloutSample:
    """TRL's fields. A worker that gives others is an error here, as it is there."""

    prompt: Any
    completion: Any
    input_ids: list[int]
    completion_mask: list[int]
    old_log_probs: list[float]
    advantage: float
    model_version: int
    metrics: dict[str, float]
    group_id: int
    enqueued_at: float
