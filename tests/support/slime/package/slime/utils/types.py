"""slime's `Sample`: the fields that its documentation names, and its way from and to a dict."""

from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any


class SampleStatus(Enum):
    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass
class Sample:
    Status = SampleStatus

    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    prompt: Any = ""
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    label: str | None = None
    reward: Any = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    rollout_routed_experts: Any = None
    remove_sample: bool = False
    status: SampleStatus = SampleStatus.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def from_dict(data: dict[str, Any]) -> "Sample":
        known = {each.name for each in fields(Sample)}
        assert set(data) <= known, set(data) - known
        return Sample(**{**data, "status": SampleStatus(data["status"])})

    def to_dict(self) -> dict[str, Any]:
        return {**self.__dict__, "status": self.status.value}

    def get_reward_value(self, args: Any) -> float:
        return self.reward
