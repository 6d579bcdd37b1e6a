"""What goes over the wire between an environment's server and its client: JSON over HTTP.

The page docs/http-environments.md describes the same for servers in other languages. Unknown
members are ignored on both sides, so that either may be the newer one.
"""

import ipaddress
from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from holdfast.records.errors import UsageError
from holdfast.records.redaction import SHORTEST, hide
from holdfast.records.step import Contract
from holdfast.rollout.episodes.environment import Environment, Observation, Recovery, Seen, checked
from holdfast.rollout.tools.tool import DEFAULT_TIMEOUT, MAX_SHOWN, Tool, as_tool

PROTOCOL = 1
MAX_BODY = 64 * 1024 * 1024
"""Bytes of a request, unless the server was told otherwise."""
MAX_ANSWER = 256 * 1024 * 1024
"""Bytes of an answer: 64 MiB of text may take several times that as JSON."""
JSON = "application/json"
BYTES = "application/octet-stream"


class ToolDescription(Struct, frozen=True, omit_defaults=True):
    """One tool, as the policy and the client see it."""

    name: str
    description: str = ""
    parameters: dict[str, object] = {}
    """The JSON schema of its arguments."""
    contract: Contract = Contract.AT_MOST_ONCE
    timeout: float = DEFAULT_TIMEOUT
    max_result: int = MAX_SHOWN
    """Characters of a result that the model is shown."""
    wants_key: bool = False
    """Whether it is to be given an idempotency key with each call."""


class Description(Struct, frozen=True):
    """The answer to `GET /`."""

    name: str
    recovery: Recovery
    snapshots: bool = False
    identity: str = ""
    tools: tuple[ToolDescription, ...] = ()
    protocol: int = PROTOCOL


class Begin(Struct, frozen=True, omit_defaults=True):
    """`POST /sessions`: with `restore`, the state to go on from; otherwise `seed`."""

    session: Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{16,128}$")]
    """Random, and chosen by the client, so that it can end a session of whose beginning it never
    heard. Asked again for the same one, the server gives the same answer."""
    seed: int = 0
    task: object = None
    restore: bytes | None = None


class Step(Struct, frozen=True):
    index: int
    """How many steps and tool calls the session has answered before."""
    action: str


class EnvironmentCall(Struct, frozen=True, omit_defaults=True):
    index: int
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    """A JSON object."""
    key: str = ""
    """The idempotency key, for a tool that wants one."""


class Seeing(Struct, frozen=True):
    """An observation."""

    text: str
    reward: float = 0.0
    done: bool = False
    truncated: bool = False
    info: Mapping[str, object] = {}

    def observation(self) -> Observation:
        return Observation(self.text, self.reward, self.done, self.truncated, self.info)


class Began(Struct, frozen=True, omit_defaults=True):
    session: str
    observation: Seeing | None = None
    """None after a restore."""
    recovery: Recovery | None = None


class EnvironmentAnswer(Struct, frozen=True, omit_defaults=True):
    """To a step or a tool call. Exactly one of its members is there."""

    observation: Seeing | None = None
    content: str | None = None
    refused: str | None = None
    """The policy is told no, and nothing happened."""


class Trouble(Struct, frozen=True):
    type: str
    message: str


class Troubled(Struct, frozen=True):
    """The body of every answer that is no success."""

    error: Trouble


def has_snapshots(environment: Environment) -> bool:
    kind = type(environment)
    return Environment.snapshot is not kind.snapshot and Environment.restore is not kind.restore


def describe(environment: Environment) -> Description:
    return Description(
        name=environment.name,
        recovery=Recovery(environment.recovery),
        snapshots=has_snapshots(environment),
        identity=environment.identity,
        tools=tuple(_described(as_tool(one)) for one in environment.tools),
    )


def _described(tool: Tool) -> ToolDescription:
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


def seeing(seen: Seen) -> Seeing:
    """What an environment returned, as it can be sent. Raises for what is no observation."""
    sent = checked(seen)
    return Seeing(sent.text, sent.reward, sent.done, sent.truncated, sent.info)


def checked_token(token: str | None) -> str | None:
    """A token that can be sent, and that is hidden in every text from now on."""
    if token is None:
        return None
    if len(token) < SHORTEST or not (token.isascii() and token.isprintable()) or " " in token:
        raise UsageError(
            f"a token is {SHORTEST} or more visible ASCII characters; this one is not (it is not "
            "shown here)"
        )
    hide(token)
    return token


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
