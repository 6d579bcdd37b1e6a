"""Python functions that a model may call.

A tool's `Contract` says what to do with a call if the process died during the call, so that nobody
knows whether the call took effect. With the default contract, the call is not run again, and the
model is told.
"""

import functools
import inspect
import json
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import overload

import msgspec

from holdfast.records.encoding.declared import checks_arguments
from holdfast.records.errors import ToolSaysNo, UsageError
from holdfast.records.message import FunctionCall, ToolCall
from holdfast.records.step import Contract
from holdfast.records.task import check_schema
from holdfast.rollout.threads.contain import contain
from holdfast.rollout.threads.mailbox import Begin
from holdfast.rollout.threads.pool import DaemonThreads, begin_soon
from holdfast.rollout.tools.isolated.pool import Isolated
from holdfast.rollout.tools.result import MAX_RESULT, cut_middle, result_text
from holdfast.rollout.tools.schema import (
    KEY_PARAMETER,
    ParameterSchema,
    ReadySchema,
    Signature,
    name_of,
)

__all__ = [
    "DEFAULT_TIMEOUT",
    "KEY_PARAMETER",
    "MAX_RESULT",
    "Function",
    "InvalidArguments",
    "Tool",
    "as_tool",
    "check_listed",
    "name_in",
    "result_text",
    "schemas_of",
    "tool",
    "tools_of",
]

DEFAULT_TIMEOUT = 600.0
MAX_RESULT_CHARACTERS = 100_000
"""The most characters of a result that a model sees."""
NAMES = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""The names that chat templates and inference engines accept."""

Function = Callable[..., "Awaitable[object] | object"]


class InvalidArguments(ToolSaysNo):
    """The model's arguments do not fit the tool."""


class Tool:
    """A function with a name, a schema, a contract and a deadline.

    - A parameter called `idempotency_key` is hidden from the model. Holdfast sets it to a key that
      is the same whenever the same call is run again.
    - `timeout` is in seconds. `max_result` is in characters; a longer result is cut.
    - An `isolated` tool runs in a separate process, which is killed at the deadline.
    - `takes` describes the arguments, in place of the function's signature.
    """

    @checks_arguments(own="function contract name takes")
    def __init__(
        self,
        function: Function,
        *,
        contract: Contract | str = Contract.AT_MOST_ONCE,
        timeout: float = DEFAULT_TIMEOUT,
        name: str | None = None,
        max_result: int = MAX_RESULT_CHARACTERS,
        isolated: bool = False,
        takes: ParameterSchema | None = None,
    ):
        self.name = _check_name(name if name is not None else name_of(function))
        self._set_up(function, takes or Signature(function, self.name))
        self._set_limits(contract, timeout=timeout, max_result=max_result)
        self._isolated = Isolated(function, self.name) if isolated else None
        # Each tool has its own threads, so that a hanging tool uses up only its own share.
        self._threads = DaemonThreads(f"calls of tool {self.name}")

    @classmethod
    @checks_arguments(own="cls name parameters function contract")
    def from_schema(
        cls,
        name: str,
        description: str,
        parameters: Mapping[str, object],
        function: Function,
        *,
        contract: Contract | str = Contract.AT_MOST_ONCE,
        timeout: float = DEFAULT_TIMEOUT,
        max_result: int = MAX_RESULT_CHARACTERS,
    ) -> "Tool":
        """Makes a tool from a ready JSON schema. `function(**arguments)` gets the members of the
        decoded object.

        The module `rollout.tools.validate` describes which parts of the schema are checked before
        the function is called.
        """
        takes = ReadySchema(function, name=name, description=description, parameters=parameters)
        return cls(
            function,
            contract=contract,
            timeout=timeout,
            name=name,
            max_result=max_result,
            takes=takes,
        )

    def _set_up(self, function: Function, parameters: ParameterSchema) -> None:
        self.function = function
        self.is_async = _is_async(function)
        self.wants_key = parameters.wants_key
        self._parameters = parameters
        self.schema: dict[str, object] = {
            "type": "function",
            "function": {
                "name": self.name,
                "description": parameters.description,
                "parameters": parameters.schema,
            },
        }

    def _set_limits(self, contract: Contract | str, *, timeout: float, max_result: int) -> None:
        if not 0 < timeout < math.inf:
            raise UsageError(f"tool {self.name}: timeout={timeout} has to be more than 0 seconds")
        if max_result < 1:
            raise UsageError(f"tool {self.name}: max_result={max_result} has to be at least 1")
        if contract not in list(Contract):
            known = ", ".join(Contract)
            raise UsageError(f"tool {self.name}: contract={contract!r} is none of {known}")
        self.contract = Contract(contract)
        self.timeout = timeout
        self.max_result = max_result

    def __call__(self, *args: object, **kwargs: object) -> object:
        return self.function(*args, **kwargs)

    def call(self, **arguments: object) -> ToolCall:
        """Returns a call made by the rollout itself instead of the model."""
        written = json.dumps(arguments, default=msgspec.to_builtins)
        return ToolCall("", FunctionCall(self.name, written))

    def bind(self, arguments: str) -> dict[str, object]:
        """Decodes and validates the arguments. Raises `InvalidArguments`, whose message is shown to
        the model."""
        try:
            return self._parameters.decode(arguments or "{}")
        except RecursionError as error:
            raise InvalidArguments(
                f"invalid arguments for {self.name}: too deeply nested"
            ) from error
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise InvalidArguments(f"invalid arguments for {self.name}: {error}") from error

    @property
    def isolated(self) -> bool:
        return self._isolated is not None

    @property
    def caller_timeout(self) -> float | None:
        """The deadline that the caller enforces. None for an isolated tool, which enforces its
        deadline itself and counts it from the moment when its process is ready."""
        return None if self.isolated else self.timeout

    @asynccontextmanager
    async def slot(self, arguments: dict[str, object]) -> "AsyncIterator[Begin[object]]":
        """Reserves what a call needs to begin at once. Yields an async function that makes the
        call.

        A plain function gets a thread, so that it never blocks the loop. An isolated function gets
        a process that is ready. An async function gets its turn on the loop. The time of the call
        does not include the wait for a slot.

        If the caller is cancelled, the wait ends, and the process of an isolated function is ended.
        """
        if self._isolated is not None:
            own = {name: value for name, value in arguments.items() if name != KEY_PARAMETER}
            key = arguments.get(KEY_PARAMETER) if self.wants_key else None
            async with self._isolated.slot(
                own, key=None if key is None else str(key), timeout=self.timeout
            ) as begin:
                yield begin
        elif self.is_async:
            async with begin_soon(lambda: await_result(self.function(**arguments))) as begin_here:
                yield begin_here
        else:
            async with self._threads.slot(lambda: self.function(**arguments)) as begin_thread:

                async def begin_in_thread() -> object:
                    return await await_result(await begin_thread())

                yield begin_in_thread

    async def invoke(self, arguments: dict[str, object]) -> object:
        """Waits for a slot and runs the function in it."""
        async with self.slot(arguments) as begin:
            return await begin()

    def render_result(self, value: object) -> str:
        """Returns the text of a result that the model sees and that is recorded, cut to
        `max_result`."""
        return cut_middle(result_text(value), self.max_result)


async def await_result(returned: object) -> object:
    """Returns what a function returned, after awaiting it if it is awaitable."""
    return await contain(returned) if isinstance(returned, Awaitable) else returned


@overload
def tool(function: Function, /) -> Tool: ...
@overload
def tool(
    *,
    contract: Contract | str = ...,
    timeout: float = ...,
    name: str | None = ...,
    max_result: int = ...,
    isolated: bool = ...,
) -> Callable[[Function], Tool]: ...
@checks_arguments(own="function contract name")
def tool(
    function: Function | None = None,
    /,
    *,
    contract: Contract | str = Contract.AT_MOST_ONCE,
    timeout: float = DEFAULT_TIMEOUT,
    name: str | None = None,
    max_result: int = MAX_RESULT_CHARACTERS,
    isolated: bool = False,
) -> Tool | Callable[[Function], Tool]:
    """Makes a tool: `@tool`, or `@tool(contract="idempotent", timeout=30)`."""

    def make(function: Function) -> Tool:
        return Tool(
            function,
            contract=contract,
            timeout=timeout,
            name=name,
            max_result=max_result,
            isolated=isolated,
        )

    return make if function is None else make(function)


def as_tool(candidate: "Tool | Function") -> Tool:
    if isinstance(candidate, Tool):
        return candidate
    if not callable(candidate):
        meant = "; did you mean *tools?" if isinstance(candidate, list | tuple) else ""
        raise UsageError(f"{candidate!r:.200} is not a tool: give a function or a Tool{meant}")
    # Cached, because the schema is needed at every turn. Methods are not, because the cache would
    # keep their object alive.
    return _tool_of(candidate) if inspect.isfunction(candidate) else Tool(candidate)


@functools.lru_cache(maxsize=256)
def _tool_of(function: Function) -> Tool:
    return Tool(function)


def tools_of(tools: "Sequence[Tool | Function]", *, where: str) -> tuple[Tool, ...]:
    """Converts `tools` to `Tool`s. Raises `UsageError` if one cannot be a tool, or if two have the
    same name."""
    check_listed(tools, f"{where} wants a list of functions or Tools")
    converted = tuple(as_tool(tool) for tool in tools)
    schemas_of(converted)
    return converted


def check_listed(value: object, wants: str) -> None:
    if isinstance(value, str) or not isinstance(value, Iterable):
        if isinstance(value, Tool) or inspect.isfunction(value):
            name = value.name if isinstance(value, Tool) else value.__name__
            raise UsageError(f"{wants}, not {name!r} alone: write [{name}]")
        raise UsageError(f"{wants}, not {value!r:.200}")


def schemas_of(
    tools: "Sequence[Tool | Function | dict[str, object]]",
) -> tuple[dict[str, object], ...]:
    """Returns the schemas that the model sees. `tools` are tools, plain functions or ready-made
    schemas."""
    check_listed(tools, "tools wants a list of functions, Tools or schemas")
    schemas = tuple(tool if isinstance(tool, dict) else as_tool(tool).schema for tool in tools)
    for at, schema in enumerate(schemas):
        check_schema(schema, where=f"t.generate: tools[{at}]")
    try:  # A value that cannot be recorded is refused before anyone sees it.
        msgspec.json.encode(schemas)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"the tools' schemas are not JSON: {error}") from None
    names = [name_in(schema) for schema in schemas]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(
            f"two tools are called {twice!r}, and the model could only call one of them; rename "
            "one (a server's tools can be given a prefix)"
        )
    return schemas


def name_in(schema: dict[str, object]) -> object:
    function = schema.get("function")
    return function.get("name") if isinstance(function, dict) else schema.get("name", id(schema))


def _check_name(name: object) -> str:
    if not isinstance(name, str) or not NAMES.fullmatch(name):
        raise UsageError(
            f"tool name {name!r}: models and engines take 1 to 64 letters, digits, _ and -; "
            'give another, as in @holdfast.tool(name="search") or Tool(function, name="search")'
        )
    return name


def _is_async(function: Function) -> bool:
    call = type(function).__call__ if not inspect.isroutine(function) else function
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
