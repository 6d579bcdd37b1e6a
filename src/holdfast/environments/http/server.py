"""EnvironmentServer: serves any environment over HTTP, with one session per trajectory.

docs/reference/http-protocol.md describes the protocol. There are limits on the sessions, their idle
time, the size of bodies, and the time of each call. By default, the server listens on 127.0.0.1 and
makes its own token. For an address that other machines can reach, the caller must give a token.
"""

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from aiohttp import web

from holdfast.addresses import is_loopback
from holdfast.environments.http.protocol import (
    BeginRequest,
    Description,
    StepRequest,
    ToolRequest,
    check_token,
    describe,
)
from holdfast.environments.http.session import HostedReply, HostedSession, error_reply
from holdfast.off_loop import off_loop
from holdfast.records.errors import UsageError
from holdfast.records.failure import as_exception, failure_of
from holdfast.request_body import MAX_BODY_BYTES, read_body, too_large
from holdfast.request_guard import RequestRefused, check_request
from holdfast.rollout.episodes.environment import Environment
from holdfast.server_tokens import LoopbackToken

MAX_SESSIONS = 256
IDLE_SECONDS = 3600.0
_RETRY_AFTER_SECONDS = 1
_SWEEP_SECONDS = 30.0
_SHUTDOWN_SECONDS = 5.0

Make = Callable[[object], Environment]
"""Creates the environment of a task. The task is JSON from the client, None by default."""
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Body = TypeVar("Body")


class EnvironmentRequestRejected(Exception):
    """A request that the server answers with an error."""

    def __init__(self, reply: HostedReply):
        self.reply = reply


class EnvironmentServer:
    """A server that runs within its context: `async with EnvironmentServer(make) as server:
    server.url`.

    `make(task)` is called once for each session. It is also called once with `example`, to describe
    the environment. The name, recovery level and tools must be the same for every task.
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
        max_body: int = MAX_BODY_BYTES,
    ):
        """`idle` is the number of seconds without a request after which a session is closed."""
        if token is None and not is_loopback(host):
            raise UsageError(
                f"{host} can be reached from other machines: give EnvironmentServer a token, or "
                "leave it on 127.0.0.1"
            )
        if max_sessions < 1 or idle <= 0 or max_body < 1:
            raise UsageError("max_sessions, idle and max_body have to be more than 0")
        self._make = make
        self._host, self._port = host, port
        self._user_token = check_token(token)
        self._token = ""
        self._loopback_token: LoopbackToken | None = None
        self._max_sessions, self._idle, self._max_body = max_sessions, idle, max_body
        self.description: Description = _describe(make, example)
        self.url = ""
        """For example http://127.0.0.1:41234; empty before `start`."""
        self._sessions: dict[str, HostedSession] = {}
        self._runner: web.AppRunner | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "EnvironmentServer":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Starts the server, and returns when it accepts requests."""
        runner = web.AppRunner(
            self._application(),
            access_log=None,
            shutdown_timeout=_SHUTDOWN_SECONDS,
            auto_decompress=False,
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
        self._token = self._user_token or self._take_token(port)
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._sweeper = asyncio.create_task(self._sweep())

    async def stop(self) -> None:
        """Closes every session. Waits at most a few seconds for calls that hang."""
        if self._runner is None or self._sweeper is None:
            return
        for site in list(self._runner.sites):
            await site.stop()
        if closing := [self._close(session) for session in self._sessions.values()]:
            await asyncio.wait(closing, timeout=_SHUTDOWN_SECONDS)
        self._sweeper.cancel()
        cancelled = [task for session in self._sessions.values() for task in session.cancel()]
        await asyncio.wait([self._sweeper, *cancelled], timeout=_SHUTDOWN_SECONDS)
        await self._runner.cleanup()
        if self._loopback_token is not None:
            self._loopback_token.close()
        self._runner = None

    def _take_token(self, port: int) -> str:
        self._loopback_token = LoopbackToken(port)
        return self._loopback_token.value

    @property
    def sessions(self) -> int:
        """The number of sessions, including those that are being closed."""
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
        body = await _read(request, BeginRequest)
        session = self._sessions.get(body.session) or self._open(body)
        reply = await session.begin(body)
        if reply.status != 200:
            self._close(session)
        return _response(reply)

    async def _step(self, request: web.Request) -> web.Response:
        body = await _read(request, StepRequest)
        return _response(await self._session(request).step(body))

    async def _tool(self, request: web.Request) -> web.Response:
        body = await _read(request, ToolRequest)
        return _response(await self._session(request).tool(body))

    async def _snapshot(self, request: web.Request) -> web.Response:
        return _response(await self._session(request).snapshot())

    async def _delete(self, request: web.Request) -> web.Response:
        session = self._sessions.get(request.match_info["id"])
        if session is None:
            raise _unknown_session()
        self._close(session)
        return _response(await session.end())

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Rejects clients without the right to ask, and gives all error responses the same
        shape."""
        try:
            check_request(request, names=() if self._user_token is None else None)
            self._authorize(request)
            return await handler(request)
        except RequestRefused as refusal:
            kind = "TooLarge" if refusal.status == 413 else "Refused"
            return _response(error_reply(refusal.status, kind, str(refusal)))
        except EnvironmentRequestRejected as rejected:
            return _response(rejected.reply)
        except web.HTTPRequestEntityTooLarge:
            return _response(error_reply(413, "TooLarge", too_large(self._max_body)))
        except web.HTTPException as error:
            return _response(error_reply(error.status, "BadRequest", error.reason))

    def _authorize(self, request: web.Request) -> None:
        sent = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if not self._token or not hmac.compare_digest(sent, f"Bearer {self._token}".encode()):
            raise _rejected(401, "Unauthorized", "the token is missing or wrong")

    # --- sessions

    def _open(self, body: BeginRequest) -> HostedSession:
        if len(self._sessions) >= self._max_sessions:
            message = f"all {self._max_sessions} sessions are in use"
            raise _rejected(429, "TooManySessions", message, retry_after=_RETRY_AFTER_SECONDS)
        try:
            environment = self._make(body.task)
            self._check_kind(environment)
            session = HostedSession(environment, name=body.session, max_state=self._max_body // 2)
        except (Exception, SystemExit) as error:
            failure = failure_of(as_exception(error))
            raise _rejected(500, failure.type, failure.message) from error
        self._sessions[session.name] = session
        return session

    def _check_kind(self, environment: Environment) -> None:
        description, expected = describe(environment), self.description
        kinds = {(kind.name, kind.recovery) for kind in (description, expected)}
        if len(kinds) > 1 or description.tools != expected.tools:
            raise UsageError(
                f"this task's {description.name} has another name, recovery level or tools than "
                f"the {expected.name} that the server describes; serve each kind by itself"
            )

    def _session(self, request: web.Request) -> HostedSession:
        session = self._sessions.get(request.match_info["id"])
        if session is None or session.is_closing:
            raise _unknown_session()
        return session

    def _close(self, session: HostedSession) -> "asyncio.Task[None]":
        is_first = not session.is_closing
        closing = session.close()
        if is_first:
            closing.add_done_callback(lambda _: self._sessions.pop(session.name))
        return closing

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(self._idle / 4, _SWEEP_SECONDS))
            for session in list(self._sessions.values()):
                if session.idle_seconds() > self._idle:
                    self._close(session)


def _describe(make: Make, example: object) -> Description:
    try:
        made = make(example)
        if not isinstance(made, Environment):
            raise TypeError(f"it made {made!r:.200}, which is not a holdfast Environment")
        return describe(made)
    except (Exception, SystemExit) as error:
        failure = failure_of(as_exception(error))
        raise UsageError(
            f"the environment cannot be described: made with the task {example!r:.200}, "
            f"{failure.type}: {failure.message} (`example=` gives another task to look at)"
        ) from error


async def _read(request: web.Request, kind: type[Body]) -> Body:
    body = await read_body(request)
    try:
        return await off_loop(lambda: msgspec.json.decode(body, type=kind), size=len(body))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _rejected(400, "BadRequest", f"the body cannot be read: {error}") from error


def _rejected(
    status: int, kind: str, message: str, *, retry_after: int | None = None
) -> EnvironmentRequestRejected:
    return EnvironmentRequestRejected(error_reply(status, kind, message, retry_after=retry_after))


def _unknown_session() -> EnvironmentRequestRejected:
    message = (
        "there is no such session: it was closed, was idle for too long, or was lost when the "
        "server was started again"
    )
    return _rejected(404, "UnknownSession", message)


def _response(reply: HostedReply) -> web.Response:
    response = web.Response(body=reply.body, status=reply.status, content_type=reply.content_type)
    if reply.retry_after is not None:
        response.headers["Retry-After"] = str(reply.retry_after)
    return response
