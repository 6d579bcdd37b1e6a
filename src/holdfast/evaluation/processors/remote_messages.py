"""What eval-protocol's remote servers are sent, and what they say, under its names."""

from typing import Any

from pydantic import Field

from holdfast.evaluation.rows.row import Message
from holdfast.evaluation.rows.status import Open, Status


class RolloutMetadata(Open):
    """Whose rollout it is."""

    invocation_id: str
    experiment_id: str
    rollout_id: str
    run_id: str
    row_id: str


class InitRequest(Open):
    """`POST /init`: begin the rollout of one row."""

    completion_params: dict[str, Any] = Field(default_factory=dict)
    messages: list[Message] | None = None
    tools: list[dict[str, Any]] | None = None
    model_base_url: str | None = None
    """Where the model is asked."""
    metadata: RolloutMetadata
    api_key: str | None = None


class StatusResponse(Open):
    """What a server may say at `GET /status?rollout_id=…`."""

    terminated: bool
    info: dict[str, Any] | None = None
    status: Status | None = None


class LogRecord(Open):
    """`POST /logs`: what a server logs; with a status, how far its rollout is."""

    tags: list[str] = Field(default_factory=list)
    status: Status | None = None
    message: str = ""
    extras: dict[str, Any] | None = None

    @property
    def rollouts(self) -> list[str]:
        """The rollouts that it is about."""
        tagged = [tag.partition(":") for tag in self.tags]
        return [value for name, _, value in tagged if name == "rollout_id"]
