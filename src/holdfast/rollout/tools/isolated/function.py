"""Isolated tools: functions that run in a process of their own, which may die or hang alone.

The process imports the function from its module by name; arguments travel as JSON, results as
text. A call that is cancelled, or that runs into its deadline, has its process killed.
"""

import asyncio
import contextlib
import inspect
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from holdfast.records.errors import ToolSaysNo, UsageError
from holdfast.rollout.threads.pool import DaemonThreads
from holdfast.rollout.threads.start_signal import Begin, StartSignal, start_on_signal
from holdfast.rollout.tools.isolated.pool import IsolatedCall
from holdfast.rollout.tools.isolated.process import RemoteTraceback
from holdfast.rollout.tools.isolated.wire import (
    Answer,
    Broken,
    FunctionHome,
    Refusal,
    WorkerRequest,
    WorkerResult,
)
from holdfast.rollout.tools.result import RaisedElsewhere

_threads = DaemonThreads("isolated tool calls")
_imports: list[str] = []


class Isolated:
    """A module-level function, as another process finds it. Nothing is started before a call."""

    def __init__(self, function: Callable[..., object], tool: str):
        self._name, self._home = _locate(function, tool)

    @asynccontextmanager
    async def slot(
        self, arguments: dict[str, object], *, key: str | None, timeout: float
    ) -> "AsyncIterator[Begin[str]]":
        """A process that is there and ready; `timeout` counts from when the call begins."""
        if _imports:
            raise UsageError(
                f"{_imports[-1]} calls an isolated tool while it is imported: what it runs has to "
                'be under `if __name__ == "__main__":`'
            )
        written = msgspec.json.encode(arguments).decode()
        call = IsolatedCall(WorkerRequest(self._name, written, key), timeout)
        await _threads.room()
        start = StartSignal()
        async with start_on_signal(start, self._answer(call, start)) as running:

            async def begin() -> str:
                start.allow()
                return _text(await running)

            yield begin

    async def _answer(self, call: IsolatedCall, start: StartSignal) -> Answer:
        try:
            return await _threads.run(lambda: call.run(self._home, start))
        except asyncio.CancelledError:
            call.cancel()
            raise


def _text(answer: Answer) -> str:
    if isinstance(answer, WorkerResult):
        return answer.text
    if isinstance(answer, Refusal):
        raise _refusal(answer)
    assert isinstance(answer, Broken), "a process says once that it is ready"
    raise RaisedElsewhere(answer.kind, answer.message) from RemoteTraceback(answer.traceback)


@contextlib.contextmanager
def importing(home: FunctionHome) -> Iterator[None]:
    """While a worker imports a module, which must not start another that does the same."""
    _imports.append(home.file)
    try:
        yield
    finally:
        _imports.pop()


def _refusal(answer: Refusal) -> ToolSaysNo:
    """Under its own name, by which it is recorded, although its class is not known here."""
    if answer.kind == ToolSaysNo.__name__:
        return ToolSaysNo(answer.message)
    kind: type[ToolSaysNo] = type(answer.kind, (ToolSaysNo,), {})
    return kind(answer.message)


def _locate(function: Callable[..., object], tool: str) -> tuple[str, FunctionHome]:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    if not inspect.isfunction(function) or not name.isidentifier():
        raise UsageError(
            f"tool {tool}: {name} cannot be isolated, since another process has to import it; "
            "define it with `def` at the top level of a module"
        )
    # Not what `sys.modules` has under the module's name: that may be another.
    file = inspect.unwrap(function).__globals__.get("__file__")
    if not isinstance(file, str) or not os.path.exists(file):
        raise UsageError(
            f"tool {tool}: {name} cannot be isolated, since it is in no file that another process "
            "could import; put it into a module"
        )
    return name, FunctionHome(_module_name(function.__module__, file), os.path.abspath(file))


def _module_name(name: str, file: str) -> str:
    """By which it can be imported: a script is `__main__` in its own process alone."""
    if name != "__main__":
        return name
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name if spec is not None else Path(file).stem
