"""The process of a stdio server, and the messages on its standard input and output.

- The process ends with its session. First its input is closed, then its process group gets SIGTERM,
  and last SIGKILL.
- The process ends with the driver, even if the driver is killed: the input of the process ends, and
  the kernel kills the process if `setpriv` supports this.
- Output of the process outside of the protocol goes to a `ServerLog` and never to the terminal.
"""

import asyncio
import json
import os
import shutil
import signal
from asyncio.subprocess import SubprocessStreamProtocol
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from msgspec import Struct

from holdfast.environments.mcp import sdk_v1
from holdfast.environments.mcp.connection import ServerLog
from holdfast.records.errors import UsageError
from holdfast.rollout.processes.user_process import tie

if TYPE_CHECKING:
    import mcp_types
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

    Inbound = MemoryObjectSendStream[SessionMessage | Exception]
    Outbound = MemoryObjectReceiveStream[SessionMessage]
    Streams = tuple[
        MemoryObjectReceiveStream[SessionMessage | Exception],
        MemoryObjectSendStream[SessionMessage],
    ]
    from mcp.client import Transport
    from mcp.client._transport import TransportStreams, WriteStream

MAX_MESSAGE_BYTES = 256 * 1024 * 1024
STOP_SECONDS = 2.0
"""Seconds to wait after the input is closed, and after each signal."""
_EXIT_STATUS_SECONDS = 0.5
_POLL_SECONDS = 0.01
_CHUNK_BYTES = 64 * 1024


class Command(Struct, frozen=True):
    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str | None = None


class ServerProcess:
    """The process of a server and its process group. `stop` takes a limited time. `kill` needs no
    event loop."""

    def __init__(self, transport: asyncio.SubprocessTransport, pipes: SubprocessStreamProtocol):
        assert pipes.stdin is not None
        assert pipes.stdout is not None
        assert pipes.stderr is not None
        self.stdin, self.stdout, self.stderr = pipes.stdin, pipes.stdout, pipes.stderr
        self._transport = transport
        self._group: int | None = transport.get_pid()

    @classmethod
    async def start(cls, command: Command) -> "ServerProcess":
        loop = asyncio.get_running_loop()
        try:
            transport, pipes = await loop.subprocess_exec(
                lambda: SubprocessStreamProtocol(limit=MAX_MESSAGE_BYTES, loop=loop),
                *tie(),
                *_resolve(command),
                env=get_default_environment() | command.env,
                cwd=command.cwd,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise UsageError(f"it cannot be started: {error}") from error
        return cls(transport, pipes)

    @property
    def ending(self) -> str:
        code = self._transport.get_returncode()
        if code is None:
            return "it closed its output"
        if code >= 0:
            return f"it ended with exit status {code}"
        return f"it was ended by {signal.Signals(-code).name}"

    async def has_ended(self, within: float) -> bool:
        """Waits at most `within` seconds for the end of the process. Returns whether it has ended,
        even if its children still hold its pipes open."""
        deadline = asyncio.get_running_loop().time() + within
        while self._transport.get_returncode() is None:
            if asyncio.get_running_loop().time() >= deadline:
                return False
            await anyio.sleep(_POLL_SECONDS)
        return True

    async def stop(self) -> None:
        self.stdin.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            if await self.has_ended(STOP_SECONDS):
                break
            self._signal(number)
        await self.has_ended(STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Kills the process and its children. A second call does nothing."""
        self._signal(signal.SIGKILL)
        self._group = None
        self._transport.close()

    def _signal(self, number: signal.Signals) -> None:
        if self._group is not None:
            try:
                os.killpg(self._group, number)
            except (ProcessLookupError, PermissionError):
                self._group = None  # The group is gone, or belongs to another process by now.


@asynccontextmanager
async def run_server(
    command: Command, log: ServerLog, lost: Callable[[], None]
) -> "AsyncIterator[Streams]":
    """Starts a server, yields its streams of messages, and ends the server after the block. Calls
    `lost` when the connection is lost."""
    process = await ServerProcess.start(command)
    send_in, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, receive_out = anyio.create_memory_object_stream[SessionMessage](0)
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(_read_stderr, process, log)
            group.start_soon(_read_stdout, process, send_in, log, lost)
            group.start_soon(_write_stdin, process, receive_out, lost)
            try:
                yield incoming, outgoing
            finally:
                with anyio.CancelScope(shield=True):
                    await process.stop()
                group.cancel_scope.cancel()
    finally:
        # asyncio's own cancellation ignores the shield. Even then, the process must end.
        process.kill()
        for stream in (send_in, incoming, outgoing, receive_out):
            stream.close()


async def _read_stderr(process: ServerProcess, log: ServerLog) -> None:
    while data := await process.stderr.read(_CHUNK_BYTES):
        log.feed(data)


async def _read_stdout(
    process: ServerProcess, messages: "Inbound", log: ServerLog, lost: Callable[[], None]
) -> None:
    try:
        while line := await process.stdout.readline():
            message = parse_message(line)
            if message is None:
                text = line.decode("utf-8", "replace")
                log.add(f"on stdout, where only messages belong: {text}")
            else:
                await messages.send(SessionMessage(message))
    except ValueError:
        log.add(f"(a message of more than {MAX_MESSAGE_BYTES:,} bytes)")
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        return
    await process.has_ended(_EXIT_STATUS_SECONDS)
    log.ending = process.ending
    messages.close()
    lost()


async def _write_stdin(
    process: ServerProcess, messages: "Outbound", lost: Callable[[], None]
) -> None:
    try:
        async for item in messages:
            body = item.message.model_dump_json(by_alias=True, exclude_unset=True)
            process.stdin.write(body.encode() + b"\n")
            await process.stdin.drain()
    except OSError:
        lost()


def parse_message(line: bytes) -> "mcp_types.JSONRPCMessage | None":
    """Returns the message in a line, or None if there is none. Invalid characters, which results
    may contain, are replaced."""
    try:
        return _validate(line)
    except ValueError:
        pass
    try:
        message = json.loads(line.decode("utf-8", "replace"))
        text = json.dumps(message, ensure_ascii=False).encode("utf-8", "replace")
        return _validate(text)
    except (ValueError, RecursionError):
        return None


def _validate(line: bytes) -> "mcp_types.JSONRPCMessage":
    if sdk_v1.is_installed():
        return sdk_v1.parse_message(line)  # type: ignore[no-any-return]
    import mcp_types

    return mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False)


def _resolve(command: Command) -> tuple[str, ...]:
    name, *args = command.argv
    path = shutil.which(name, path=command.env.get("PATH"))
    if path is None and not (command.cwd and os.path.exists(os.path.join(command.cwd, name))):
        raise UsageError(f"there is no command {name}: install it, or give its path")
    if command.cwd is not None and not os.path.isdir(command.cwd):
        raise UsageError(f"there is no folder {command.cwd} to start it in")
    return (path or name, *args)


@asynccontextmanager
async def with_client_info(
    transport: "Transport", info: Mapping[str, object]
) -> "AsyncIterator[TransportStreams]":
    async with transport as (incoming, outgoing):
        yield incoming, _ClientInfoStream(outgoing, info)


class _ClientInfoStream:
    """A stream that adds `info` to the client's name in the `initialize` request."""

    def __init__(self, stream: "WriteStream[SessionMessage]", info: Mapping[str, object]):
        self._stream = stream
        self._info = info

    async def send(self, item: SessionMessage, /) -> None:
        # Version 1 of the package wraps each message in a `root`.
        message: Any = getattr(item.message, "root", item.message)
        if getattr(message, "method", None) == "initialize":
            params = message.params or {}
            client = {**params.get("clientInfo", {}), **self._info}
            message.params = {**params, "clientInfo": client}
        await self._stream.send(item)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> "_ClientInfoStream":
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> bool | None:
        return await self._stream.__aexit__(*error)
