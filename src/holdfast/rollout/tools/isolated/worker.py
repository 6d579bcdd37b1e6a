"""Runs in the process of an isolated tool: imports a module once, then runs the calls one by one.

The process dies with its driver. What the tool prints goes to the same place as the driver's
output, because the connection to the driver has a separate descriptor.
"""

import asyncio
import faulthandler
import os
import socket
from collections.abc import Awaitable
from types import ModuleType
from typing import BinaryIO

import msgspec
from msgspec import Struct

from holdfast.records.errors import ToolSaysNo
from holdfast.records.failure import as_exception
from holdfast.records.foreign import text_of
from holdfast.rollout.processes.frames import FunctionHome, frame, read
from holdfast.rollout.processes.user_module import die_with, import_module
from holdfast.rollout.tools.isolated.wire import (
    MAX_FRAME,
    Answer,
    Broken,
    Ready,
    Refusal,
    WorkerRequest,
    WorkerResult,
)
from holdfast.rollout.tools.result import cut_middle, result_text
from holdfast.rollout.tools.tool import KEY_PARAMETER, Tool

MAX_MESSAGE_CHARACTERS = 10_000
MAX_TRACEBACK_CHARACTERS = 100_000


def main(connection: int, driver: int, faults: int) -> None:
    """Runs calls until the driver is gone."""
    die_with(driver)
    # The processes that a tool starts do not inherit these descriptors.
    os.set_inheritable(connection, False)
    os.set_inheritable(faults, False)
    faulthandler.enable(faults)
    with socket.socket(fileno=connection) as talk, asyncio.Runner() as runner:
        try:
            _serve(talk, talk.makefile("rb"), runner)
        except (EOFError, ConnectionError):
            # The driver is gone. Threads of the tool must not keep this process alive.
            os._exit(0)


def _serve(talk: socket.socket, requests: BinaryIO, runner: asyncio.Runner) -> None:
    def send(answer: Struct) -> None:
        talk.sendall(frame(answer, most=MAX_FRAME))

    home = msgspec.msgpack.decode(read(requests, most=MAX_FRAME), type=FunctionHome)
    try:
        module = import_module(home)
    except BaseException as error:
        send(_broken_answer(error))
        return
    send(Ready())
    while True:
        request = msgspec.msgpack.decode(read(requests, most=MAX_FRAME), type=WorkerRequest)
        send(_answer(module, request, runner))


def _answer(module: ModuleType, request: WorkerRequest, runner: asyncio.Runner) -> Answer:
    try:
        return WorkerResult(result_text(_call(module, request, runner)))
    except ToolSaysNo as no:
        return Refusal(type(no).__name__, cut_middle(result_text(str(no)), MAX_MESSAGE_CHARACTERS))
    except BaseException as error:  # Even an error that would end a process fails only one call.
        return _broken_answer(error)


def _call(module: ModuleType, request: WorkerRequest, runner: asyncio.Runner) -> object:
    function = getattr(module, request.function)
    tool = function if isinstance(function, Tool) else Tool(function)
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
