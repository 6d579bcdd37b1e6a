"""The process of a stdio server, and the lines that go in and out of it.

- It ends with its session: end of input, then SIGTERM, then SIGKILL, to its own process group and
  to nothing else.
- It does not outlive the driver, however that one ends: its input ends, and where `setpriv` can,
  the kernel kills it.
- What it writes beside the protocol is kept in bounded `McpTexts` and never reaches the terminal.
"""

import asyncio
import functools
import json
import os
import shutil
import signal
import subprocess
from asyncio.subprocess import SubprocessStreamProtocol
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from msgspec import Struct

from holdfast.environments.mcp import sdk_v1 as first
from holdfast.environments.mcp.sdk_v1 import is_first
from holdfast.environments.mcp.server_log import McpTexts
from holdfast.records.errors import UsageError

if TYPE_CHECKING:
    import mcp_types
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

    Inbound = MemoryObjectSendStream[SessionMessage | Exception]
    Outbound = MemoryObjectReceiveStream[SessionMessage]
    Streams = tuple[
        MemoryObjectReceiveStream[SessionMessage | Exception],
        MemoryObjectSendStream[SessionMessage],
    ]

MAX_MESSAGE = 256 * 1024 * 1024
PATIENCE = 2.0
"""Seconds after each way of asking a server to end."""
_LAST_WORDS = 0.5
_POLL = 0.01
_CHUNK = 64 * 1024


class Command(Struct, frozen=True):
    """What is run."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str | None = None


class ServerProcess:
    """One child and its process group. `stop` is bounded; `kill` needs no event loop."""

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
                lambda: SubprocessStreamProtocol(limit=MAX_MESSAGE, loop=loop),
                *_dying_with_parent(),
                *_found(command),
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

    async def ended(self, within: float) -> bool:
        """Whether it is gone. (Waiting for its pipes, too, would be waiting for its children.)"""
        deadline = asyncio.get_running_loop().time() + within
        while self._transport.get_returncode() is None:
            if asyncio.get_running_loop().time() >= deadline:
                return False
            await anyio.sleep(_POLL)
        return True

    async def stop(self) -> None:
        self.stdin.close()
        for one in (signal.SIGTERM, signal.SIGKILL):
            if await self.ended(PATIENCE):
                break
            self._signal(one)
        await self.ended(PATIENCE)
        self.kill()

    def kill(self) -> None:
        """Whatever is left of it, its children too. Does nothing a second time."""
        self._signal(signal.SIGKILL)
        self._group = None
        self._transport.close()

    def _signal(self, one: signal.Signals) -> None:
        if self._group is not None:
            try:
                os.killpg(self._group, one)
            except (ProcessLookupError, PermissionError):
                # Gone, or no longer ours to signal.
                self._group = None


@asynccontextmanager
async def served(
    command: Command, words: McpTexts, lost: Callable[[], None]
) -> "AsyncIterator[Streams]":
    """Runs a server and carries its messages; `lost` is called when no more can come."""
    process = await ServerProcess.start(command)
    arriving, arrived = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    leaving, left = anyio.create_memory_object_stream[SessionMessage](0)
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(_listen, process, words)
            group.start_soon(_read, process, arriving, words, lost)
            group.start_soon(_write, process, left, lost)
            try:
                yield arrived, leaving
            finally:
                with anyio.CancelScope(shield=True):
                    await process.stop()
                group.cancel_scope.cancel()
    finally:
        # A native cancellation goes through every shield; nothing may be left then, either.
        process.kill()
        for stream in (arriving, arrived, leaving, left):
            stream.close()


async def _listen(process: ServerProcess, words: McpTexts) -> None:
    while data := await process.stderr.read(_CHUNK):
        words.hear(data)


async def _read(
    process: ServerProcess, arriving: "Inbound", words: McpTexts, lost: Callable[[], None]
) -> None:
    try:
        while line := await process.stdout.readline():
            message = parsed(line)
            if message is None:
                words.say(
                    "on stdout, where only messages belong: " + line.decode("utf-8", "replace")
                )
            else:
                await arriving.send(SessionMessage(message))
    except ValueError:
        words.say(f"(a message of more than {MAX_MESSAGE:,} bytes)")
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        return
    await process.ended(_LAST_WORDS)
    words.ending = process.ending
    arriving.close()
    lost()


async def _write(process: ServerProcess, left: "Outbound", lost: Callable[[], None]) -> None:
    try:
        async for one in left:
            body = one.message.model_dump_json(by_alias=True, exclude_unset=True)
            process.stdin.write(body.encode() + b"\n")
            await process.stdin.drain()
    except OSError:
        # It does not listen any more: an answer would be one to something else.
        lost()


def parsed(line: bytes) -> "mcp_types.JSONRPCMessage | None":
    """The message; None if it is none. Characters that are none are replaced: a tool's odd answer
    is an answer."""
    try:
        return _message(line)
    except ValueError:
        pass
    try:
        found = json.loads(line.decode("utf-8", "replace"))
        text = json.dumps(found, ensure_ascii=False).encode("utf-8", "replace")
        return _message(text)
    except (ValueError, RecursionError):
        return None


def _message(line: bytes) -> "mcp_types.JSONRPCMessage":
    if is_first():
        return first.parsed(line)  # type: ignore[no-any-return]
    import mcp_types

    return mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False)


def _found(command: Command) -> tuple[str, ...]:
    name, *args = command.argv
    path = shutil.which(name, path=command.env.get("PATH"))
    if path is None and not (command.cwd and os.path.exists(os.path.join(command.cwd, name))):
        raise UsageError(f"there is no command {name}: install it, or give its path")
    if command.cwd is not None and not os.path.isdir(command.cwd):
        raise UsageError(f"there is no folder {command.cwd} to start it in")
    return (path or name, *args)


@functools.cache
def _dying_with_parent() -> tuple[str, ...]:
    """The end of input tells most servers that the driver was killed; the kernel tells the rest."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        return ()
    prefix = (setpriv, "--pdeathsig", "KILL", "--")
    # Not every setpriv knows the option.
    tried = subprocess.run([*prefix, "true"], capture_output=True, timeout=10, check=False)  # noqa: S603
    return prefix if tried.returncode == 0 else ()
