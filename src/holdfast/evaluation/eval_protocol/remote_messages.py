"""Requests to eval-protocol's remote servers, and their responses, under eval-protocol's names."""

from typing import Any

from pydantic import Field

from holdfast.evaluation.rows.row import Message
from holdfast.evaluation.rows.status import Open, Status


class RolloutMetadata(Open):
    """The names of a rollout."""

    invocation_id: str
    experiment_id: str
    rollout_id: str
    run_id: str
    row_id: str


class InitRequest(Open):
    """The body of `POST /init`, which begins the rollout of one row."""

    completion_params: dict[str, Any] = Field(default_factory=dict)
    messages: list[Message] | None = None
    tools: list[dict[str, Any]] | None = None
    model_base_url: str | None = None
    """The base URL of the model."""
    metadata: RolloutMetadata
    api_key: str | None = None


class StatusResponse(Open):
    """A server's response to `GET /status?rollout_id=…`."""

    terminated: bool
    info: dict[str, Any] | None = None
    status: Status | None = None


class LogRecord(Open):
    """The body of `POST /logs`: a server's log record. `status` is the state of its rollout."""

    tags: list[str] = Field(default_factory=list)
    status: Status | None = None
    message: str = ""
    extras: dict[str, Any] | None = None

    @property
    def rollouts(self) -> list[str]:
        """The ids of the rollouts that the record is about."""
        tagged = [tag.partition(":") for tag in self.tags]
        return [value for name, _, value in tagged if name == "rollout_id"]
