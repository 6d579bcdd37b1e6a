"""A gateway, or a proxy in its place, as a process of its own, and the agents that ask it."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp

from holdfast.server_tokens import known_token

HERE = Path(__file__).parent


class Service:
    """A process that tells what it has used so far."""

    def __init__(self, child: "subprocess.Popen[str]", mode: str):
        assert child.stdin is not None
        assert child.stdout is not None
        self._child, self._in, self._out = child, child.stdin, child.stdout
        self.mode = mode
        self.url = self._out.readline().strip()

    def used(self) -> dict[str, float]:
        """CPU seconds since its start, and the bytes of memory that it holds."""
        self._in.write("now\n")
        self._in.flush()
        found: dict[str, float] = json.loads(self._out.readline())
        return found

    def end(self) -> None:
        self._in.close()
        self._child.wait(60)
        self._out.close()


@contextmanager
def service(mode: str, engine: str, *, trajectories: int) -> Iterator[Service]:
    """`mode`: `gateway`, `proxy` (that keeps tokens) or `text` (a proxy that keeps text)."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        child = str(HERE / "gateway_child.py")
        command = [sys.executable, child, mode, engine, folder, str(trajectories)]
        started = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        running = Service(started, mode)
        try:
            yield running
        finally:
            running.end()


class Agent:
    """One trajectory, and whoever speaks for it."""

    def __init__(self, session: aiohttp.ClientSession, url: str, key: str = "none", task: str = ""):
        self.task = task
        self._session = session
        self._url = url
        self._target = f"{url}/v1/chat/completions"
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}

    @classmethod
    async def taken(
        cls, session: aiohttp.ClientSession, running: Service, task: str | None = None
    ) -> "Agent":
        """The next trajectory, or that of a task; of one that is taken, its next attempt."""
        if running.mode != "gateway":
            return cls(session, running.url)
        wanted: dict[str, object] = {"wait": 30}
        wanted |= {} if task is None else {"task": task}
        token = {"Authorization": f"Bearer {known_token(running.url)}"}
        url = f"{running.url}/trajectories"
        async with session.post(url, json=wanted, headers=token) as answer:
            told = await answer.json()
            return cls(session, running.url, told["key"], told["task"]["id"])

    async def ask(self, messages: list[dict[str, str]], *, reply: int, stream: bool = False) -> str:
        body = {"model": "fake", "max_tokens": reply, "messages": messages, "stream": stream}
        return await self.send(json.dumps(body).encode())

    async def complete(self) -> None:
        async with self._session.post(f"{self._url}/complete", headers=self._headers) as answer:
            assert answer.status == 200, await answer.text()

    async def send(self, body: bytes) -> str:
        async with self._session.post(self._target, data=body, headers=self._headers) as answer:
            assert answer.status == 200, await answer.text()
            if answer.content_type == "text/event-stream":
                return await answer.text()
            told = await answer.json()
            return str(told["choices"][0]["message"]["content"])


def client() -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(limit=0)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(600))
