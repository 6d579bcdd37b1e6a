"""Starts, calls and ends one process of an isolated tool, in the driver. All calls of a `Process`
must be on the loop that created it."""

import asyncio
import tempfile
from collections.abc import Awaitable
from typing import TypeVar

import msgspec
from msgspec import Struct

from holdfast.records.errors import EnvironmentBroken
from holdfast.rollout.processes.frames import BadFrame, FunctionHome, frame, receive
from holdfast.rollout.processes.user_process import POLL_SECONDS, UserProcess
from holdfast.rollout.threads.contain import finishes_within
from holdfast.rollout.tools.isolated.wire import MAX_FRAME, Answer, Broken, WorkerRequest

START_SECONDS = 300.0
"""The most seconds that the import of a module may take."""
EXIT_SECONDS = 2.0
"""How many seconds a process that closed its connection has to end by itself."""
MAX_FAULT_BYTES = 100_000
Result = TypeVar("Result")
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


class RemoteTraceback(Exception):
    """The traceback or last output of the other process, shown as the cause of an error."""


class Process:
    """A process of an isolated tool. The thread that creates it must outlive it."""

    def __init__(self, home: FunctionHome):
        self.calls = 0
        self.idle_since = 0.0
        self._home = home
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._faults = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `end`)
        try:
            module = "holdfast.rollout.tools.isolated.worker"
            self.child = UserProcess(module, faults=self._faults.fileno())
        except BaseException:
            self._faults.close()
            raise

    async def get_ready(self) -> None:
        """Waits until the process has imported the module. Raises `EnvironmentBroken` if that
        fails."""
        if self._streams is not None:
            return
        self._streams = await self.child.connect()
        where = f"its module {self._home.module} ({self._home.file})"
        try:
            answer = await self._exchange(self._home, START_SECONDS)
        except TimeoutError as error:
            raise EnvironmentBroken(f"{where} took over {START_SECONDS:g} s to import") from error
        if isinstance(answer, Broken):
            raise EnvironmentBroken(
                f"{where} cannot be imported in a process of its own: "
                f"{answer.kind}: {answer.message}"
            ) from RemoteTraceback(answer.traceback)

    async def call(self, request: WorkerRequest, timeout: float) -> Answer:
        """Makes a call in a process that is ready, and returns the answer."""
        self.calls += 1
        try:
            return await self._exchange(request, timeout)
        except TimeoutError as error:
            raise EnvironmentBroken(
                f"it did not end within {timeout:g} s; its process was killed"
            ) from error

    async def _exchange(self, message: Struct, timeout: float) -> Answer:
        assert self._streams is not None, "it is connected"
        reader, writer = self._streams
        body = frame(message, most=MAX_FRAME)
        try:
            async with asyncio.timeout(timeout):
                writer.write(body)
                await self._while_alive(writer.drain())
                return _answers.decode(await self._while_alive(receive(reader, most=MAX_FRAME)))
        except (asyncio.IncompleteReadError, EOFError, ConnectionError) as error:
            how = await asyncio.to_thread(self.child.end, grace=EXIT_SECONDS)
            output = self._last_output()
            raise EnvironmentBroken(how) from RemoteTraceback(output) if output else error
        except (BadFrame, msgspec.MsgspecError) as error:
            raise EnvironmentBroken(f"its process wrote what is not an answer: {error}") from error

    async def _while_alive(self, work: Awaitable[Result]) -> Result:
        """Awaits `work` and returns its result. Raises `EOFError` if the process ends first. The
        connection alone does not show this end if children of the process hold it open."""
        job = asyncio.ensure_future(work)
        try:
            while not await finishes_within(job, POLL_SECONDS):
                if self.child.has_ended():
                    raise EOFError
            return job.result()
        finally:
            job.cancel()

    async def end(self) -> None:
        """Ends the process and its group, and waits for the end."""
        if self._streams is not None:
            self._streams[1].transport.abort()
        await asyncio.to_thread(self.child.end)
        self._last_output()

    def _last_output(self) -> str:
        if self._faults.closed:
            return ""
        with self._faults as file:
            file.seek(0)
            return file.read(MAX_FAULT_BYTES).decode("utf-8", "replace")
