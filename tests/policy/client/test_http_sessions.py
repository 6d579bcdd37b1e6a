"""A session belongs to one loop, and does not outlive it; what it sends, and what it reads."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest

from holdfast.policy.client.http_sessions import HttpSession, HttpSessions, read_body


def new_session() -> HttpSession:
    return HttpSession({}, on_connection=lambda: None)


def test_callers_of_one_loop_share_a_session_and_each_loop_has_its_own() -> None:
    sessions = HttpSessions(new_session)

    async def together() -> HttpSession:
        first, second = await asyncio.gather(sessions.get(), sessions.get())
        assert first is second
        return first

    assert asyncio.run(together()) is not asyncio.run(together())


def test_loops_that_are_over_are_forgotten() -> None:
    sessions = HttpSessions(new_session)
    for _ in range(5):
        asyncio.run(sessions.get())
    assert len(sessions._by_loop) == 1


def test_a_session_is_closed_with_its_loop() -> None:
    sessions = HttpSessions(new_session)
    assert asyncio.run(sessions.get()).closed


async def test_after_it_was_closed_there_is_another() -> None:
    sessions = HttpSessions(new_session)
    first = await sessions.get()
    await sessions.aclose()
    await sessions.aclose()
    assert first.closed
    assert not (await sessions.get()).closed


# --- requests, against a server that answers with the bytes that a test gives it

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
QUICK = aiohttp.ClientTimeout(total=10, sock_connect=10)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """A server that answers each request with the next of its answers."""

    def __init__(self, *answers: bytes):
        self.answers = list(answers)
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.connections = 0
        self.lost = asyncio.Event()

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while self.answers:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                self.bodies.append(await reader.readexactly(length))
                writer.write(self.answers.pop(0))
            await reader.read()
        except asyncio.IncompleteReadError:
            pass
        finally:
            self.lost.set()
            writer.close()


@asynccontextmanager
async def serving(talk: Talk, *, user: str = "") -> AsyncIterator[tuple[HttpSession, str]]:
    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    session = new_session()
    try:
        yield session, f"http://{user}127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/completions"
    finally:
        await session.close()
        server.close()


async def post(session: HttpSession, url: str, body: bytes = b"{}") -> tuple[int, bytes]:
    async with session.post(url, body, request_id="run/7", timeout=QUICK) as response:
        return response.status, await read_body(response, 1 << 20)


def asking(server: Server, *, times: int = 1, user: str = "") -> list[tuple[int, bytes]]:
    async def main() -> list[tuple[int, bytes]]:
        async with serving(server.talk, user=user) as (session, url):
            return [await post(session, url) for _ in range(times)]

    return asyncio.run(main())


def test_requests_share_a_connection_and_say_what_http_asks_for() -> None:
    server = Server(OK, OK, OK)
    assert asking(server, times=3) == [(200, b"ok")] * 3
    assert server.connections == 1
    assert server.heads[0].startswith(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nContent-Type: application/json\r\n" in server.heads[0]
    assert server.heads[0].endswith(b"\r\nX-Request-Id: run/7\r\nContent-Length: 2\r\n\r\n")
    assert server.heads[0].lower().count(b"content-length") == 1
    assert server.bodies == [b"{}"] * 3


def test_a_connection_that_the_server_closes_is_not_used_again() -> None:
    closing = OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    server = Server(closing, OK)
    assert asking(server, times=2) == [(200, b"ok")] * 2
    assert server.connections == 2


def test_compressed_and_chunked_bodies_are_read() -> None:
    body = gzip.compress(b"x" * 100_000)
    chunked = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunked += b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    assert asking(Server(chunked, OK), times=2) == [(200, b"x" * 100_000), (200, b"ok")]


def test_responses_that_only_say_that_the_request_arrived_are_skipped() -> None:
    assert asking(Server(b"HTTP/1.1 102 Processing\r\n\r\n" + OK)) == [(200, b"ok")]


def test_credentials_of_the_address_are_sent() -> None:
    server = Server(OK)
    asking(server, user="me:secret@")
    assert b"\r\nAuthorization: Basic bWU6c2VjcmV0\r\n" in server.heads[0]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", aiohttp.ClientResponseError),
        (b"", aiohttp.ServerDisconnectedError),
        (OK[:-1], aiohttp.ClientPayloadError),
    ],
)
async def test_an_answer_that_is_not_whole_is_an_error(
    answer: bytes, error: type[Exception]
) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(answer)
        writer.close()

    with pytest.raises(error):
        async with serving(talk) as (session, url):
            await post(session, url)


async def test_an_answer_before_the_end_of_the_request_ends_the_connection() -> None:
    connections = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await asyncio.sleep(60)

    async with serving(talk) as (session, url):
        for _ in range(2):
            assert await post(session, url, b" " * (1 << 25)) == (200, b"ok")
        for writer in connections:
            writer.close()
    assert len(connections) == 2


async def test_a_cancelled_request_ends_its_connection() -> None:
    server = Server(b"", OK)
    async with serving(server.talk) as (session, url):
        call = asyncio.create_task(post(session, url))
        while not server.bodies:
            await asyncio.sleep(0.01)
        call.cancel()
        await asyncio.wait({call})
        await asyncio.wait_for(server.lost.wait(), 10)
        assert await post(session, url) == (200, b"ok")


@pytest.mark.parametrize("timeout", [{"total": 0.2}, {"sock_read": 0.2}])
def test_a_server_that_says_nothing_is_late(timeout: dict[str, float]) -> None:
    async def main() -> None:
        async with serving(Server(b"").talk) as (session, url):
            limits = aiohttp.ClientTimeout(**timeout)
            async with session.post(url, b"{}", request_id="1", timeout=limits):
                pass

    with pytest.raises(TimeoutError):
        asyncio.run(main())
