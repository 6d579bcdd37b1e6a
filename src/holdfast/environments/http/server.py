"""EnvironmentServer: any environment over HTTP, a session for each trajectory.

docs/http-environments.md describes the wire. Everything is bounded: sessions, their idle time,
bodies, and the time of each call. It listens on 127.0.0.1; anywhere else it wants a token.

From the shell: `python -m holdfast.environments.serving FILE.py:make --port 0`.
"""

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from aiohttp import web

from holdfast.environments.http.protocol import (
    JSON,
    MAX_BODY,
    Begin,
    Description,
    EnvironmentCall,
    Step,
    checked_token,
    describe,
    is_loopback,
)
from holdfast.environments.http.session import Hosted, HostedReply, trouble
from holdfast.records.errors import UsageError
from holdfast.records.failure import failure_of
from holdfast.rollout.episodes.environment import Environment
from holdfast.rollout.threads.contain import as_exception

MAX_SESSIONS = 256
IDLE_SECONDS = 3600.0
_RETRY_AFTER = 1
_SWEEP_SECONDS = 30.0
_SHUTDOWN_SECONDS = 5.0

Make = Callable[[object], Environment]
"""Makes the environment of a task: whatever JSON the client gave, None if it gave nothing."""
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Asked = TypeVar("Asked")


class EnvironmentRequestRejected(Exception):
    """A request that gets another answer than the one it asked for."""

    def __init__(self, reply: HostedReply):
        self.reply = reply


class EnvironmentServer:
    """Serves while it is entered: `async with EnvironmentServer(make) as server: server.url`.

    `make(task)` is called once per session, and once with `example` to find out what is served:
    its name, recovery level and tools have to be the same for every task.
    """

    def __init__(
        self,
        make: Make,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        example: object = None,
        max_sessions: int = MAX_SESSIONS,
        idle: float = IDLE_SECONDS,
        max_body: int = MAX_BODY,
    ):
        """`idle`: seconds after which a session that nobody asks for is closed."""
        if token is None and not is_loopback(host):
            raise UsageError(
                f"{host} can be reached from other machines: give EnvironmentServer a token, or "
                "leave it on 127.0.0.1"
            )
        if max_sessions < 1 or idle <= 0 or max_body < 1:
            raise UsageError("max_sessions, idle and max_body have to be more than 0")
        self._make = make
        self._host, self._port = host, port
        self._token = checked_token(token)
        self._max_sessions, self._idle, self._max_body = max_sessions, idle, max_body
        self.description: Description = _describe(make, example)
        self.url = ""
        """Like http://127.0.0.1:41234, once it is started."""
        self._sessions: dict[str, Hosted] = {}
        self._runner: web.AppRunner | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "EnvironmentServer":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Returns when it takes requests."""
        runner = web.AppRunner(
            self._application(), access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, self._host, self._port, backlog=4096).start()
        except OSError as error:
            await runner.cleanup()
            raise UsageError(
                f"cannot listen on {self._host}:{self._port} ({error.strerror}); port 0 takes a "
                "free one"
            ) from error
        self._runner = runner
        host, port = runner.addresses[0][:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._sweeper = asyncio.create_task(self._sweep())

    async def stop(self) -> None:
        """Closes every session, waiting a few seconds at most for those that hang."""
        if self._runner is None or self._sweeper is None:
            return
        for site in list(self._runner.sites):
            await site.stop()
        if leaving := [self._leave(session) for session in self._sessions.values()]:
            await asyncio.wait(leaving, timeout=_SHUTDOWN_SECONDS)
        self._sweeper.cancel()
        left = [task for session in self._sessions.values() for task in session.abandon()]
        await asyncio.wait([self._sweeper, *left], timeout=_SHUTDOWN_SECONDS)
        await self._runner.cleanup()
        self._runner = None

    @property
    def sessions(self) -> int:
        """How many it holds, those included that are being closed."""
        return len(self._sessions)

    # --- requests

    def _application(self) -> web.Application:
        app = web.Application(client_max_size=self._max_body, middlewares=[self._guard])
        app.router.add_get("/", self._describe)
        app.router.add_post("/sessions", self._begin)
        app.router.add_post("/sessions/{id}/step", self._step)
        app.router.add_post("/sessions/{id}/tool", self._tool)
        app.router.add_get("/sessions/{id}/snapshot", self._snapshot)
        app.router.add_delete("/sessions/{id}", self._delete)
        return app

    async def _describe(self, request: web.Request) -> web.Response:
        return _response(HostedReply(200, msgspec.json.encode(self.description)))

    async def _begin(self, request: web.Request) -> web.Response:
        asked = await _read(request, Begin)
        session = self._sessions.get(asked.session) or self._open(asked)
        reply = await session.begin(asked)
        if reply.status != 200:
            self._leave(session)
        return _response(reply)

    async def _step(self, request: web.Request) -> web.Response:
        asked = await _read(request, Step)
        return _response(await self._session(request).step(asked))

    async def _tool(self, request: web.Request) -> web.Response:
        asked = await _read(request, EnvironmentCall)
        return _response(await self._session(request).tool(asked))

    async def _snapshot(self, request: web.Request) -> web.Response:
        return _response(await self._session(request).snapshot())

    async def _delete(self, request: web.Request) -> web.Response:
        session = self._sessions.get(request.match_info["id"])
        if session is None:
            raise EnvironmentRequestRejected(_unknown_session())
        self._leave(session)
        return _response(await session.goodbye())

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Who may ask, and every error in one shape."""
        try:
            self._admit(request)
            return await handler(request)
        except EnvironmentRequestRejected as refused:
            return _response(refused.reply)
        except web.HTTPRequestEntityTooLarge:
            said = f"the body is larger than {self._max_body} bytes"
            return _response(trouble(413, "TooLarge", said))
        except web.HTTPException as error:
            return _response(trouble(error.status, "BadRequest", error.reason))

    def _admit(self, request: web.Request) -> None:
        if self._token is None:
            # A page in a browser on this machine reaches it under a name of its own making.
            if not is_loopback(request.url.host or ""):
                raise EnvironmentRequestRejected(
                    trouble(403, "Forbidden", "without a token, ask for 127.0.0.1")
                )
            return
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, f"Bearer {self._token}".encode()):
            raise EnvironmentRequestRejected(
                trouble(401, "Unauthorized", "the token is missing or wrong")
            )

    # --- sessions

    def _open(self, asked: Begin) -> Hosted:
        if len(self._sessions) >= self._max_sessions:
            said = f"all {self._max_sessions} sessions are in use"
            raise EnvironmentRequestRejected(
                trouble(429, "TooManySessions", said, retry_after=_RETRY_AFTER)
            )
        try:
            environment = self._make(asked.task)
            self._check_kind(environment)
            session = Hosted(environment, name=asked.session, max_state=self._max_body // 2)
        except (Exception, SystemExit) as error:
            failure = failure_of(as_exception(error))
            raise EnvironmentRequestRejected(trouble(500, failure.type, failure.message)) from error
        self._sessions[session.name] = session
        return session

    def _check_kind(self, environment: Environment) -> None:
        found, expected = describe(environment), self.description
        if (found.name, found.recovery, found.tools) != (
            expected.name,
            expected.recovery,
            expected.tools,
        ):
            raise UsageError(
                f"this task's {found.name} has another name, recovery level or tools than the "
                f"{expected.name} that the server describes; serve each kind by itself"
            )

    def _session(self, request: web.Request) -> Hosted:
        session = self._sessions.get(request.match_info["id"])
        if session is None or session.is_leaving:
            raise EnvironmentRequestRejected(_unknown_session())
        return session

    def _leave(self, session: Hosted) -> "asyncio.Task[None]":
        is_first = not session.is_leaving
        leaving = session.leave()
        if is_first:
            leaving.add_done_callback(lambda _: self._forget(session))
        return leaving

    def _forget(self, session: Hosted) -> None:
        del self._sessions[session.name]

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(self._idle / 4, _SWEEP_SECONDS))
            for session in list(self._sessions.values()):
                if session.idle() > self._idle:
                    self._leave(session)


def _describe(make: Make, example: object) -> Description:
    try:
        made = make(example)
        if not isinstance(made, Environment):
            raise TypeError(f"it made {made!r:.200}, which is no holdfast Environment")
        return describe(made)
    except (Exception, SystemExit) as error:
        failure = failure_of(as_exception(error))
        raise UsageError(
            f"the environment cannot be described: made with the task {example!r:.200}, "
            f"{failure.type}: {failure.message} (`example=` gives another task to look at)"
        ) from error


async def _read(request: web.Request, kind: type[Asked]) -> Asked:
    if request.content_type != JSON:
        # Pages in a browser can send anything else to this machine without asking.
        raise EnvironmentRequestRejected(trouble(415, "BadRequest", f"the body has to be {JSON}"))
    body = await request.read()
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise EnvironmentRequestRejected(
            trouble(400, "BadRequest", f"the body cannot be read: {error}")
        ) from error


def _unknown_session() -> HostedReply:
    return trouble(
        404,
        "UnknownSession",
        "there is no such session: it was closed, was idle for too long, or was lost when the "
        "server was started again",
    )


def _response(reply: HostedReply) -> web.Response:
    response = web.Response(body=reply.body, status=reply.status, content_type=reply.kind)
    if reply.retry_after is not None:
        response.headers["Retry-After"] = str(reply.retry_after)
    return response
