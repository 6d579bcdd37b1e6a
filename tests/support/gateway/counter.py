"""A gateway with trajectories on it, for tests that come to its counter as clients do."""

import asyncio
import socket
from contextlib import asynccontextmanager

import msgspec
from msgspec import structs

from holdfast.gateway.calls.trajectory import AgentTrajectory
from holdfast.gateway.server import Binding, Gateway
from holdfast.gateway.wires.all import WIRES
from holdfast.policy.hold import HoldablePolicy
from holdfast.records.message import user
from holdfast.records.task import Task
from support.rollout.stage import Oracle, TrajectoryUnderTest

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
COUNT, MODELS = "/v1/messages/count_tokens", "/v1/models"
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
BODIES = {
    CHAT: HELLO,
    COMPLETIONS: {"model": "m", "prompt": [104, 105]},
    RESPONSES: {"model": "m", "input": "hello"},
    MESSAGES: {**HELLO, "max_tokens": 50},
}
"""Something that each wire answers."""


class Counter:
    """One gateway and one trajectory that is bound to it."""

    def __init__(self, gateway: Gateway, subject: TrajectoryUnderTest, sample: int = 0):
        self.gateway, self.subject, self.sample = gateway, subject, sample

    @asynccontextmanager
    async def attempt(self):
        """Bound, as each attempt is."""
        session = await self.subject.session(sample=self.sample)
        policy = HoldablePolicy(session.speaker.policy, self.gateway.holds)
        session.speaker = structs.replace(session.speaker, policy=policy)
        trajectory = AgentTrajectory(session)
        binding = self.gateway.bind(trajectory)
        try:
            yield trajectory, binding
            await session.log.cut_untaken()
        finally:
            self.gateway.release(binding)
            await trajectory.aclose()

    @property
    def port(self) -> int:
        return int(self.gateway.url.rpartition(":")[2])


@asynccontextmanager
async def opened(
    answer=None,
    *,
    task: str = "t",
    samples: int = 1,
    sample: int = 0,
    seed: int | None = 1,
    **options,
):
    """A gateway with one trajectory: (counter, trajectory, binding)."""
    subject = TrajectoryUnderTest(
        Oracle(answer) if answer else Oracle(),
        task=Task(id=task, messages=(user("do it"),)),
        samples=samples,
        seed=seed,
    )
    async with Gateway(WIRES, **options) as gateway:
        counter = Counter(gateway, subject, sample)
        async with counter.attempt() as (trajectory, binding):
            yield counter, trajectory, binding


def request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    """As it goes over the socket; the connection is closed after it."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Connection: close"]
    if body or method == "POST":
        headers.setdefault("Content_Type", "application/json")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if body or method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def post(path: str, body: object, binding: Binding | None = None, **headers: str) -> bytes:
    if binding is not None:
        headers.setdefault("Authorization", f"Bearer {binding.key}")
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return request("POST", path, raw, **headers)


class Reply:
    """What came back over a socket."""

    def __init__(self, raw: bytes):
        head, _, self.body = raw.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        self.raw = raw
        self.status = int(first.split(" ")[1]) if first else 0
        self.headers = {
            name.lower(): value for name, value in (line.split(": ", 1) for line in lines)
        }

    @property
    def json(self):
        return msgspec.json.decode(self.body)


async def exchange(port: int, raw: bytes, *, begun=None, seconds: float = 60) -> Reply:
    """Sends the bytes, and reads until the other side closes. `begun` is called when the headers
    have come: a stream's come with its first keep-alive, before there is an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(raw)
        await writer.drain()
        async with asyncio.timeout(seconds):
            head = b""
            if begun is not None:
                head = await reader.readuntil(b"\r\n\r\n")
                begun()
            return Reply(head + await reader.read())
    finally:
        writer.close()


async def narrow(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that takes little before it is read from."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    return await asyncio.open_connection(sock=sock, limit=1000)


async def until(condition, *, seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)
