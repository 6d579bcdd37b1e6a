"""The JSON bodies of requests and responses between an environment server and its client.

docs/reference/http-protocol.md describes them for servers in other languages. Both sides ignore
unknown members, so that either side may be newer.
"""

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from holdfast.records.encoding.redaction import SHORTEST, hide
from holdfast.records.errors import UsageError
from holdfast.records.step import Contract
from holdfast.rollout.episodes.environment import (
    Environment,
    Observation,
    Recovery,
    Seen,
    check_observation,
)
from holdfast.rollout.tools.tool import DEFAULT_TIMEOUT, MAX_RESULT_CHARACTERS, Tool, as_tool

PROTOCOL = 1
MAX_RESPONSE_BYTES = 256 * 1024 * 1024
"""The most bytes of a response. It is larger than the limit of a text, which may take several times
as many bytes in JSON."""
JSON = "application/json"
BYTES = "application/octet-stream"


class ToolDescription(Struct, frozen=True, omit_defaults=True):
    """One tool of the server."""

    name: str
    description: str = ""
    parameters: dict[str, object] = {}
    """The JSON schema of the tool's arguments."""
    contract: Contract = Contract.AT_MOST_ONCE
    timeout: float = DEFAULT_TIMEOUT
    max_result: int = MAX_RESULT_CHARACTERS
    """How many characters of a result the model sees."""
    wants_key: bool = False
    """Whether the tool needs an idempotency key in each call."""


class Description(Struct, frozen=True):
    """The response to `GET /`."""

    name: str
    recovery: Recovery
    snapshots: bool = False
    identity: str = ""
    tools: tuple[ToolDescription, ...] = ()
    protocol: int = PROTOCOL


class BeginRequest(Struct, frozen=True, omit_defaults=True):
    """The body of `POST /sessions`, which begins an episode: from the snapshot in `restore` if
    there is one, and otherwise with `seed`."""

    session: Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{16,128}$")]
    """A random name that the client chooses. The client can then end a session even if the
    response to this request was lost. A repeated request gets the same response.
    """
    seed: int = 0
    task: object = None
    restore: bytes | None = None


class StepRequest(Struct, frozen=True):
    index: int
    """The number of steps and tool calls in this session before this one."""
    action: str


class ToolRequest(Struct, frozen=True, omit_defaults=True):
    index: int
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    """The tool's arguments, a JSON object."""
    key: str = ""
    """The idempotency key, or "" for a tool that needs none."""


class ObservationBody(Struct, frozen=True):
    text: str
    reward: float = 0.0
    done: bool = False
    truncated: bool = False
    info: Mapping[str, object] = {}

    def observation(self) -> Observation:
        return Observation(self.text, self.reward, self.done, self.truncated, self.info)


class BeginReply(Struct, frozen=True, omit_defaults=True):
    session: str
    observation: ObservationBody | None = None
    """The first observation, or None after a restore."""
    recovery: Recovery | None = None


class ActionReply(Struct, frozen=True, omit_defaults=True):
    """The response to a step or a tool call; it has exactly one member."""

    observation: ObservationBody | None = None
    content: str | None = None
    refused: str | None = None
    """Why the environment refused the action, or None. A refused action had no effect."""


class ErrorBody(Struct, frozen=True):
    type: str
    message: str


class ErrorReply(Struct, frozen=True):
    """The body of every response that is not a success."""

    error: ErrorBody


def has_snapshots(environment: Environment) -> bool:
    kind = type(environment)
    return Environment.snapshot is not kind.snapshot and Environment.restore is not kind.restore


def describe(environment: Environment) -> Description:
    return Description(
        name=environment.name,
        recovery=Recovery(environment.recovery),
        snapshots=has_snapshots(environment),
        identity=environment.identity,
        tools=tuple(_describe_tool(as_tool(tool)) for tool in environment.tools),
    )


def _describe_tool(tool: Tool) -> ToolDescription:
    function = tool.schema["function"]
    assert isinstance(function, dict), "a tool's schema has a function"
    return ToolDescription(
        name=tool.name,
        description=str(function.get("description", "")),
        parameters=dict(function.get("parameters") or {}),
        contract=tool.contract,
        timeout=tool.timeout,
        max_result=tool.max_result,
        wants_key=tool.wants_key,
    )


def as_body(seen: Seen) -> ObservationBody:
    """Returns the body for the value that an environment returned. Raises an error if the value is
    not an observation."""
    observation = check_observation(seen)
    return ObservationBody(
        observation.text,
        observation.reward,
        observation.done,
        observation.truncated,
        observation.info,
    )


def check_token(token: str | None) -> str | None:
    """Returns the token if it is valid, and raises `UsageError` otherwise. From now on, the token
    is removed from all messages, logs and records."""
    if token is None:
        return None
    if len(token) < SHORTEST or not (token.isascii() and token.isprintable()) or " " in token:
        raise UsageError(
            f"a token is {SHORTEST} or more visible ASCII characters; this one is not (it is not "
            "shown here)"
        )
    hide(token)
    return token
