"""What NeMo's rollouts ask an environment, and what they unpack, in its order."""

import abc
from typing import Any, NamedTuple


class EnvironmentReturn(NamedTuple):
    observations: list[dict[str, str]]
    metadata: list[Any]
    next_stop_strings: list[Any]
    rewards: Any
    terminateds: Any
    answers: list[Any] | None


class EnvironmentInterface(abc.ABC):
    @abc.abstractmethod
    def step(self, message_log_batch, metadata) -> EnvironmentReturn: ...

    @abc.abstractmethod
    def global_post_process_and_metrics(self, batch) -> tuple[Any, dict[str, Any]]: ...
