"""The messages between a driver and the process of an isolated tool."""

from msgspec import Struct

from holdfast.rollout.tools.result import MAX_RESULT

MAX_FRAME = MAX_RESULT + 1024 * 1024


class WorkerRequest(Struct, frozen=True):
    """A call of the function. The arguments are JSON, which the worker validates again."""

    function: str
    arguments: str
    key: str | None = None


class Ready(Struct, frozen=True, tag=True):
    """The process has imported the module."""


class WorkerResult(Struct, frozen=True, tag=True):
    text: str


class Refusal(Struct, frozen=True, tag=True):
    """The function raised `ToolSaysNo`, or an error of a class derived from it."""

    kind: str
    message: str


class Broken(Struct, frozen=True, tag=True):
    """The function, or the import of its module, raised any other exception."""

    kind: str
    message: str
    traceback: str


Answer = Ready | WorkerResult | Refusal | Broken
