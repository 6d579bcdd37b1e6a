"""FakeContainers: starts and ends the stand-in of a container engine, and makes its answers fail.

The engine has a thread and an event loop of its own, so that tests may block. A fault makes an
answer fail to arrive, either `before` or `after` the request takes effect.
"""

import asyncio
import re
import shutil
import tempfile
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from msgspec import Struct

from holdfast.testing.fake_containers.http import FakeRefusal, RawRequest, answer, read_request
from holdfast.testing.fake_containers.routes import EngineRoutes
from holdfast.testing.fake_containers.state import EngineState, FakeContainer

START = re.compile(r"/exec/([^/]+)/start")
CALL_SECONDS = 60.0


class LostAnswer(Struct):
    """A fault: the answers to the next matching requests are lost."""

    request: str
    """A regular expression for a method and a path, such as `POST /containers/create`."""
    after: bool = False
    times: int = 1


class FakeContainers:
    """A container engine for tests. Use it as `with FakeContainers() as engine:` and connect to
    `engine.address`."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-containers-"))
        self.state = EngineState(self.folder)
        self.requests: list[str] = []
        """Every request so far, as its method and path."""
        self._faults: list[LostAnswer] = []
        self._routes = EngineRoutes(self.state)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[Any], asyncio.StreamWriter] = {}

    @property
    def address(self) -> str:
        return f"unix://{self.folder}/socket"

    @property
    def containers(self) -> list[FakeContainer]:
        return list(self.state.containers)

    @property
    def snapshots(self) -> list[str]:
        return [tag for image in self.state.images if image.labels for tag in image.tags]

    def __enter__(self) -> "FakeContainers":
        self._thread.start()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._do(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        shutil.rmtree(self.folder)

    def start(self) -> None:
        self._do(self._listen())

    def stop(self) -> None:
        """Ends the engine and the processes of all its containers, as SIGKILL would."""
        self._do(self._close())

    def kill(self, container: FakeContainer) -> None:
        self._do(_kill(container))

    def lose(self, request: str, *, after: bool = False, times: int = 1) -> None:
        self._faults.append(LostAnswer(request, after, times))

    def forgive(self) -> None:
        """Removes the faults: no more answers are lost."""
        self._faults.clear()

    def _do(self, call: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(call, self._loop).result(CALL_SECONDS)

    async def _listen(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, f"{self.folder}/socket")

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for container in self.containers:
            container.kill()
        serving = dict(self._open)
        for task, writer in serving.items():
            writer.transport.abort()
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = writer
        try:
            while (request := await read_request(reader)) is not None:
                if not await self._answer(request, reader, writer):
                    return
        except ConnectionError:
            return  # The client went away.
        finally:
            del self._open[task]
            writer.close()

    async def _answer(
        self, request: RawRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answers a request. Returns whether the connection stays open."""
        name = f"{request.method} {request.path}"
        self.requests.append(name)
        fault = self._fault_for(name)
        if fault is not None and not fault.after:
            return False
        if (match := START.fullmatch(request.path)) and not request.json().get("Detach"):
            await self._routes.run(match[1], reader, writer)
            return False
        try:
            body = await self._body_for(request, match)
        except FakeRefusal as refusal:
            body = answer(refusal.status, {"message": str(refusal)})
        if fault is not None:
            return False
        writer.write(body)
        await writer.drain()
        return True

    async def _body_for(self, request: RawRequest, start: re.Match[str] | None) -> bytes:
        if start is not None:
            await self._routes.run_detached(start[1])
            return answer(200)
        return await asyncio.to_thread(self._routes.serve, request)

    def _fault_for(self, name: str) -> LostAnswer | None:
        for fault in self._faults:
            if fault.times and re.fullmatch(fault.request, name):
                fault.times -= 1
                return fault
        return None


async def _kill(container: FakeContainer) -> None:
    container.kill()
