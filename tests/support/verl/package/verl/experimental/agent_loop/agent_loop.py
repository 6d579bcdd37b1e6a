"""verl's agent loops: their base class, their registry, and what they return."""

from dataclasses import dataclass, field
from typing import Any

_agent_loop_registry: dict[str, dict[str, str]] = {}


@dataclass
class AgentLoopMetrics:
    """The times that verl logs."""

    generate_sequences: float = 0.0
    tool_calls: float = 0.0


@dataclass
class AgentLoopOutput:
    """The row of one trajectory, or of one of its branches."""

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    metrics: AgentLoopMetrics
    response_logprobs: list[float] | None = None
    reward_score: float | None = None
    num_turns: int = 0
    extra_fields: dict[str, Any] = field(default_factory=dict)


class AgentLoopBase:
    """verl makes one for each prompt, by the name that is registered."""

    def __init__(self, trainer_config: Any, server_manager: Any, tokenizer: Any):
        self.config = trainer_config
        self.rollout_config = trainer_config.rollout
        self.server_manager = server_manager
        self.tokenizer = tokenizer


def register(name: str) -> Any:
    """verl keeps the name of the class, and imports it where a loop runs."""

    def decorator(loop: type[AgentLoopBase]) -> type[AgentLoopBase]:
        _agent_loop_registry[name] = {"_target_": f"{loop.__module__}.{loop.__qualname__}"}
        return loop

    return decorator
