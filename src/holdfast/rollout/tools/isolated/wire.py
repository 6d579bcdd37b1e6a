"""The messages between a driver and the process of an isolated tool."""

from msgspec import Struct

from holdfast.rollout.tools.result import MAX_RESULT

MAX_FRAME = MAX_RESULT + 1024 * 1024


class WorkerRequest(Struct, frozen=True):
    """A call. The arguments are JSON, and the worker validates them again."""

    function: str
    arguments: str
    key: str | None = None


class Ready(Struct, frozen=True, tag=True):
    """The module is imported."""


class WorkerResult(Struct, frozen=True, tag=True):
    text: str


class Refusal(Struct, frozen=True, tag=True):
    """A `ToolSaysNo`, or a class derived from it."""

    kind: str
    message: str


class Broken(Struct, frozen=True, tag=True):
    """Any other exception."""

    kind: str
    message: str
    traceback: str


Answer = Ready | WorkerResult | Refusal | Broken
