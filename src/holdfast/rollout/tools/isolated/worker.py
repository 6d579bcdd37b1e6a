"""The process of an isolated tool: imports a module once, then runs one call after the other.

It dies with its driver. What the tool prints goes where the driver's prints go; the connection to
the driver is a descriptor of its own.
"""

import asyncio
import ctypes
import faulthandler
import importlib
import importlib.util
import os
import signal
import socket
import sys
from collections.abc import Awaitable
from importlib.machinery import ModuleSpec
from types import ModuleType

import msgspec

from holdfast.records.errors import ToolSaysNo
from holdfast.records.failure import as_exception
from holdfast.records.foreign import text_of
from holdfast.rollout.tools.isolated.pool import importing
from holdfast.rollout.tools.isolated.wire import (
    Answer,
    Broken,
    FunctionHome,
    Ready,
    Refusal,
    WorkerRequest,
    WorkerResult,
    frame,
    read,
)
from holdfast.rollout.tools.result import cut_middle, result_text
from holdfast.rollout.tools.tool import KEY_PARAMETER, Tool

MAX_MESSAGE_CHARACTERS = 10_000
MAX_TRACEBACK_CHARACTERS = 100_000
_PR_SET_PDEATHSIG = 1


def main(connection: int, faults: int, driver: int) -> None:
    """Serves until the driver is gone."""
    die_with(driver)
    # Descriptors that a process started by the tool does not inherit.
    os.set_inheritable(connection, False)
    os.set_inheritable(faults, False)
    faulthandler.enable(faults)
    with socket.socket(fileno=connection) as talk, asyncio.Runner() as runner:
        try:
            _serve(talk, runner)
        except (EOFError, ConnectionError):
            # Nobody is left to run anything for. Threads of the tool must not keep this alive.
            os._exit(0)


def die_with(driver: int) -> None:
    """The kernel ends this process when the process `driver`, which started it, ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != driver:  # It died before it could be tied to.
        os._exit(0)


def _serve(talk: socket.socket, runner: asyncio.Runner) -> None:
    home = msgspec.msgpack.decode(read(talk.recv), type=FunctionHome)
    try:
        module = import_module(home)
    except BaseException as error:
        talk.sendall(frame(_broken_answer(error)))
        return
    talk.sendall(frame(Ready()))
    while True:
        request = msgspec.msgpack.decode(read(talk.recv), type=WorkerRequest)
        talk.sendall(frame(_answer(module, request, runner)))


def import_module(home: FunctionHome) -> ModuleType:
    """The module of the user's code, under its own name unless that is another module's."""
    sys.argv[:] = [home.file]
    found = _find_function(home.module)
    with importing(home):
        if found is not None and _is_at(found, home.file):
            return importlib.import_module(home.module)
        name = home.module if found is None else f"isolated_{home.module}"
        spec = importlib.util.spec_from_file_location(name, home.file)
        if spec is None or spec.loader is None:
            raise ImportError(f"{home.file} is no Python file")
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


def _find_function(module: str) -> ModuleSpec | None:
    """What would be imported by this name."""
    try:
        return importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None


def _is_at(spec: ModuleSpec, file: str) -> bool:
    origin = spec.origin
    return origin is not None and os.path.exists(origin) and os.path.samefile(origin, file)


def _answer(module: ModuleType, request: WorkerRequest, runner: asyncio.Runner) -> Answer:
    try:
        return WorkerResult(result_text(_call(module, request, runner)))
    except ToolSaysNo as no:
        return Refusal(type(no).__name__, cut_middle(result_text(str(no)), MAX_MESSAGE_CHARACTERS))
    except BaseException as error:  # Also what is meant to end a process: it is one call's failure.
        return _broken_answer(error)


def _call(module: ModuleType, request: WorkerRequest, runner: asyncio.Runner) -> object:
    found = getattr(module, request.function)
    tool = found if isinstance(found, Tool) else Tool(found)
    arguments = tool.bind(request.arguments)
    if request.key is not None:
        arguments[KEY_PARAMETER] = request.key
    value = tool.function(**arguments)
    return runner.run(_await_result(value)) if isinstance(value, Awaitable) else value


async def _await_result(value: Awaitable[object]) -> object:
    return await value


def _broken_answer(error: BaseException) -> Broken:
    exception = as_exception(error)
    return Broken(
        type(exception).__name__,
        cut_middle(result_text(str(exception)), MAX_MESSAGE_CHARACTERS),
        cut_middle(result_text(text_of(error)), MAX_TRACEBACK_CHARACTERS),
    )
