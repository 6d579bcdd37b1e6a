"""The sender as its owner sees it: a child process that can be killed in the middle of anything."""

import asyncio
import contextlib
import sys
from pathlib import Path

import msgspec

from holdfast.weights.carrier import Framing
from holdfast.weights.version import WeightsNotTaken

START_SECONDS = 120.0
"""It imports torch."""


class SenderProcess:
    """One group at a time. Whoever breaks off in the middle has to `kill` it."""

    def __init__(self) -> None:
        self._child: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    async def open(
        self, address: str, world_size: int, *, seconds: float, **options: object
    ) -> int:
        """The port at which it waits for the members of a new group; see `joined`. `options` are
        those of `sender.Sender.open`."""
        await self._start()
        at = {"address": address, "world_size": world_size}
        await self._write({"do": "open", **at, "seconds": seconds, **options})
        port = (await self._read(seconds))["port"]
        assert isinstance(port, int), "it says where it listens"
        return port

    async def joined(self, *, seconds: float) -> None:
        """Returns when all members are there."""
        await self._read(seconds)

    async def send(self, folder: Path, *, seconds: float, framing: Framing) -> float:
        """For how many seconds it sent. Raises `WeightsNotTaken`."""
        await self._write(
            {"do": "send", "folder": str(folder), "seconds": seconds, "framing": framing}
        )
        found = (await self._read(seconds))["seconds"]
        assert isinstance(found, float), "it says how long it took"
        return found

    async def share(
        self, folder: Path, part: int, *, device: str, seconds: float
    ) -> dict[str, object]:
        """The handle of one message of a version, and what is in it; the last one's memory is used
        again. Raises `WeightsNotTaken`."""
        await self._start()
        await self._write({"do": "share", "folder": str(folder), "part": part, "device": device})
        return await self._read(seconds)

    async def try_sharing(self, *, device: str, seconds: float) -> dict[str, object]:
        """A handle of memory with a few bytes that are known."""
        await self._start()
        await self._write({"do": "try", "device": device})
        return await self._read(seconds)

    async def kill(self) -> None:
        """Whatever it was at; the next `open` starts another one."""
        child, self._child = self._child, None
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()

    async def _start(self) -> None:
        if self._child is not None and self._child.returncode is None:
            return
        command = (sys.executable, "-m", "holdfast.weights.sender")
        self._child = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        await self._read(START_SECONDS)

    async def _write(self, request: dict[str, object]) -> None:
        assert self._child is not None
        assert self._child.stdin is not None
        self._child.stdin.write(msgspec.json.encode(request) + b"\n")
        try:
            await self._child.stdin.drain()
        except ConnectionError as error:
            raise WeightsNotTaken("the process that sends weights has died") from error

    async def _read(self, seconds: float) -> dict[str, object]:
        assert self._child is not None
        assert self._child.stdout is not None
        try:
            async with asyncio.timeout(seconds):
                line = await self._child.stdout.readline()
        except TimeoutError as error:
            raise WeightsNotTaken(f"weights were not sent within {seconds:g} s") from error
        if not line:
            raise WeightsNotTaken("the process that sends weights has died")
        answer: dict[str, object] = msgspec.json.decode(line)
        if "error" in answer:
            raise WeightsNotTaken(f"sending weights failed: {answer['error']}")
        return answer
