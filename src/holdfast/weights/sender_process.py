"""The sender as its owner sees it: a child process that can be killed in the middle of anything."""

import asyncio
import contextlib
import sys

import msgspec

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

    async def ask(self, do: str, *, within: float, **request: object) -> dict[str, object]:
        """The first answer to a request of `sender.Sender`. Raises `WeightsNotTaken` where there is
        none within so many seconds."""
        await self._start()
        await self._write({"do": do, **request})
        return await self.answer(within)

    async def kill(self) -> None:
        """Whatever it was at; the next request starts another one."""
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
        await self.answer(START_SECONDS)

    async def _write(self, request: dict[str, object]) -> None:
        assert self._child is not None
        assert self._child.stdin is not None
        self._child.stdin.write(msgspec.json.encode(request) + b"\n")
        try:
            await self._child.stdin.drain()
        except ConnectionError as error:
            raise WeightsNotTaken("the process that sends weights has died") from error

    async def answer(self, seconds: float) -> dict[str, object]:
        """The next one: a request may have several."""
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
