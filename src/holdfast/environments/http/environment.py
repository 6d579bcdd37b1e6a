"""Environments behind HTTP: in another process, on another machine, in another language.

`HttpEnvironment(url)` is enough for an environment without tools that recovers by replay. To get
the tools and the recovery level that the server declares, ask the server once:

    endpoint = await EnvironmentEndpoint.describe(url)
    episode = await t.env(endpoint.environment(task={"level": 3}))

No action runs twice: each request carries the index of its action, and the server answers a
repeated request with the same response. So `HttpConnection` can repeat a request a few times after
transport errors, and for as long as the server has no room. All tries together stay within the
caller's timeout.
"""

import asyncio
import contextlib
import math
import secrets
from collections.abc import Mapping, Sequence
from time import time
from typing import TypeVar

import aiohttp
import msgspec

from holdfast.addresses import is_http_address
from holdfast.environments.http.protocol import (
    JSON,
    MAX_RESPONSE_BYTES,
    PROTOCOL,
    ActionReply,
    BeginReply,
    BeginRequest,
    Description,
    ErrorReply,
    StepRequest,
    ToolDescription,
    ToolRequest,
    check_token,
)
from holdfast.policy.retry import RetryPolicy, retry_after
from holdfast.records.encoding.redaction import hide_credentials, redact
from holdfast.records.errors import EnvironmentBroken, HoldfastError, ToolSaysNo, UsageError
from holdfast.rollout.episodes.environment import (
    DEFAULT_TIMEOUT,
    Environment,
    Observation,
    Recovery,
    Seen,
)
from holdfast.rollout.tools.tool import KEY_PARAMETER, Tool
from holdfast.server_tokens import known_token

TRIES = 5
_PAUSES = RetryPolicy(base=0.5, cap=10.0)
_CONNECT_SECONDS = 10.0
_MAX_MESSAGE = 2_000
_UNREACHABLE = frozenset({502, 503, 504})
"""HTTP statuses with which a proxy says that it cannot reach the server."""
_encode = msgspec.json.Encoder().encode


class _Retry(Exception):
    """This try failed, but another try may succeed."""

    def __init__(self, message: str, *, wait: float | None = None):
        super().__init__(message)
        self.wait = wait
        """The seconds of the server's `Retry-After`, if it sent one."""


class HttpConnection:
    """A connection to a server. It is opened by the first request, and again by a request after
    `close`."""

    def __init__(self, url: str, *, token: str | None = None):
        self.url = _address(url)
        hide_credentials(self.url)
        self.safe_url = redact(self.url)
        self._token = check_token(token)
        self._client: aiohttp.ClientSession | None = None

    async def request(
        self, method: str, path: str, body: object = None, *, within: float, tries: int = TRIES
    ) -> bytes:
        """Sends a request and returns the response's body. Repeats the request after transport
        errors, within `within` seconds.

        Raises `EnvironmentBroken`, or `UsageError` for an error that would come again at each try.
        """
        data = None if body is None else _encode(body)
        last: list[_Retry] = []
        try:
            async with asyncio.timeout(within) as deadline:
                return await self._retrying(method, path, data, tries=tries, last=last)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            reason = f" ({last[-1]})" if last else ""
            raise EnvironmentBroken(
                f"{self.safe_url} did not answer {method} {_route(path)} within {within:g} s"
                f"{reason}"
            ) from error

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _retrying(
        self, method: str, path: str, data: bytes | None, *, tries: int, last: list[_Retry]
    ) -> bytes:
        failures = 0
        while True:
            try:
                return await self._try(method, path, data)
            except _Retry as retry:
                last[:] = [retry]
                failures += retry.wait is None
                if failures >= tries:
                    raise EnvironmentBroken(f"{self.safe_url} cannot be used: {retry}") from retry
                await asyncio.sleep(_PAUSES.delay(max(failures, 1), retry_after=retry.wait))

    async def _try(self, method: str, path: str, data: bytes | None) -> bytes:
        if self._client is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS)
            self._client = aiohttp.ClientSession(timeout=timeout)
        headers = {} if data is None else {"Content-Type": JSON}
        if (token := self._token or known_token(self.url)) is not None:
            headers["Authorization"] = f"Bearer {token}"
        try:
            async with self._client.request(
                method, self.url + path, data=data, headers=headers, allow_redirects=False
            ) as response:
                raw = await self._read(response)
        except (aiohttp.ClientError, OSError) as error:
            reason = redact(str(error)) or type(error).__name__
            raise _Retry(f"connection lost: {reason}") from error
        if response.status in (200, 202):
            return raw
        raise self._error(response.status, response.headers, raw, path)

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        body = bytearray()
        async for part in response.content.iter_any():
            body += part
            if len(body) > MAX_RESPONSE_BYTES:
                raise EnvironmentBroken(
                    f"{self.safe_url} answers with more than {MAX_RESPONSE_BYTES:,} bytes"
                )
        return bytes(body)

    def _error(
        self, status: int, headers: Mapping[str, str], raw: bytes, path: str
    ) -> HoldfastError | _Retry:
        text = f"{self.safe_url} answered {status} to {_route(path)}: {_message(raw)}"
        wait = retry_after({name.lower(): value for name, value in headers.items()}, now=time())
        if status == 429:
            return _Retry(text, wait=wait or 0.0)
        if status in _UNREACHABLE:
            return _Retry(text, wait=wait)
        if status in (401, 403):
            return UsageError(f"{text} (give the environment its `token`)")
        is_of_session = path.startswith("/sessions/")
        if status == 501 or 300 <= status < 400 or (status in (404, 405) and not is_of_session):
            return UsageError(text)
        return LostSession(text) if status == 404 else EnvironmentBroken(text)


class LostSession(EnvironmentBroken):
    """The server does not know the session: the server restarted, or the session expired."""


def _address(url: str) -> str:
    if not is_http_address(url) or "@" in url:
        # A URL with an @ may hold a password that `redact` does not recognize.
        shown = "one with an @" if "@" in url else repr(redact(url))
        raise UsageError(
            "an environment's address looks like http://127.0.0.1:8080 (a token goes into "
            f"`token`), not {shown}"
        )
    return url.rstrip("/")


def _route(path: str) -> str:
    """Returns the path without the session's name, so that the same failure has the same message in
    each session."""
    parts = path.split("/")
    return "/".join([*parts[:2], "…", *parts[3:]]) if len(parts) > 2 else path


def _message(raw: bytes) -> str:
    try:
        error = msgspec.json.decode(raw, type=ErrorReply).error
        text = f"{error.type}: {error.message}"
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        text = raw[:_MAX_MESSAGE].decode("utf-8", "replace") or "(no body)"
    return redact(text)[:_MAX_MESSAGE]


DESCRIBE_SECONDS = 30.0
BROKEN_CLOSE_SECONDS = 10.0
"""Seconds for closing a broken session. The server closes idle sessions by itself."""
_TIMEOUT_SHARE = 0.98
"""The share of the caller's timeout that requests may take. So a request fails before the caller's
timeout, with an error that names the reason."""
_MAX_QUOTED = 300
Body = TypeVar("Body")


class HttpEnvironment(Environment):
    """One session of a server, opened by `reset` or `restore` and ended by `close`.

    `task` is JSON from which the server creates the environment. `timeout` limits each call
    including its retries. Give `recovery` if the server declares a level other than "replay",
    because the server is not asked when a run is resumed.
    """

    def __init__(
        self,
        url: str,
        *,
        task: object = None,
        token: str | None = None,
        recovery: Recovery | str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        description: Description | None = None,
    ):
        self._connection = HttpConnection(url, token=token)
        self._task = _as_json(task)
        self._description = description
        self._is_level_known = recovery is not None or description is not None
        self.recovery = _level(recovery, description)
        self.timeout = timeout
        self._tools = tuple(map(self._tool, description.tools)) if description else ()
        self._session = ""
        self._index = 0
        self._is_usable = False
        """False while a request has no response, because the state of the session is then
        unknown.
        """
        self._lock = asyncio.Lock()

    @property
    def name(self) -> str:
        return self._description.name if self._description else type(self).__name__

    @property
    def identity(self) -> str:
        """The environment's settings as a text, without the address, which may change when the
        server restarts."""
        identity = self._description.identity if self._description else ""
        return f"{identity}\0{bytes(self._task).decode()}"

    @property
    def tools(self) -> Sequence[Tool]:
        return self._tools

    async def reset(self, *, seed: int) -> Observation:
        reply = await self._begin(seed=seed)
        if reply.observation is None:
            raise EnvironmentBroken(f"{self._connection.safe_url} began without an observation")
        return reply.observation.observation()

    async def restore(self, state: bytes) -> None:
        await self._begin(restore=state)

    async def step(self, action: str) -> Observation:
        async with self._lock:
            reply = await self._act("step", StepRequest(self._index, action), self.timeout)
            if reply.observation is None:
                raise EnvironmentBroken(f"{self._connection.safe_url} answered no observation")
            return reply.observation.observation()

    async def snapshot(self) -> bytes:
        async with self._lock:
            self._check_usable()
            return await self._request("GET", "/snapshot", within=self.timeout)

    async def close(self) -> None:
        try:
            async with self._lock:
                await self._end()
        finally:
            await self._connection.close()

    # --- sessions

    async def _begin(self, *, seed: int = 0, restore: bytes | None = None) -> BeginReply:
        async with self._lock:
            await self._end()
            self._session, self._index = secrets.token_urlsafe(16), 0
            body = BeginRequest(self._session, seed, self._task, restore)
            within = self.timeout * _TIMEOUT_SHARE
            raw = await self._connection.request("POST", "/sessions", body, within=within)
            reply = self._decode(raw, BeginReply)
            self._check_level(reply.recovery)
            self._is_usable = True
            return reply

    async def _end(self) -> None:
        """Ends the session. Does nothing if there is no session, or if the server no longer
        knows it.
        """
        if not self._session:
            return
        path, was_usable = f"/sessions/{self._session}", self._is_usable
        self._session, self._is_usable = "", False
        longest, tries = (math.inf, TRIES) if was_usable else (BROKEN_CLOSE_SECONDS, 1)
        within = min(self.timeout * _TIMEOUT_SHARE, longest)
        with contextlib.suppress(LostSession):
            await self._connection.request("DELETE", path, within=within, tries=tries)

    async def _act(self, route: str, body: StepRequest | ToolRequest, within: float) -> ActionReply:
        self._check_usable()
        raw = await self._request("POST", f"/{route}", body, within=within)
        reply = self._decode(raw, ActionReply)
        self._index += 1
        if reply.refused is not None:
            raise ToolSaysNo(reply.refused)
        return reply

    async def _request(
        self, method: str, route: str, body: object = None, *, within: float
    ) -> bytes:
        self._is_usable = False
        path, within = f"/sessions/{self._session}{route}", within * _TIMEOUT_SHARE
        raw = await self._connection.request(method, path, body, within=within)
        self._is_usable = True
        return raw

    def _check_usable(self) -> None:
        if not self._session:
            raise EnvironmentBroken(f"{self.name} was not reset, or was closed")
        if not self._is_usable:
            raise EnvironmentBroken(f"{self.name}: an earlier call has not come to its end")

    def _check_level(self, recovery: Recovery | None) -> None:
        if recovery is None or self._is_level_known or recovery is self.recovery:
            return
        raise UsageError(
            f"the environment at {self._connection.safe_url} comes back by {recovery.value!r}: say "
            f"recovery={recovery.value!r}, or make it with EnvironmentEndpoint.describe"
        )

    def _decode(self, raw: bytes, kind: type[Body]) -> Body:
        try:
            return msgspec.json.decode(raw, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            begins = raw[:_MAX_QUOTED].decode("utf-8", "replace")
            raise EnvironmentBroken(
                f"{self._connection.safe_url}: the answer cannot be read: {error}. "
                f"It begins: {begins}"
            ) from error

    # --- tools

    def _tool(self, described: ToolDescription) -> Tool:
        async def call(**arguments: object) -> Seen:
            key = str(arguments.pop(KEY_PARAMETER, "")) if described.wants_key else ""
            return await self._call(described, arguments, key=key)

        tool = Tool.from_schema(
            described.name,
            described.description,
            described.parameters,
            call,
            contract=described.contract,
            timeout=described.timeout,
            max_result=described.max_result,
        )
        tool.wants_key = described.wants_key
        return tool

    async def _call(self, tool: ToolDescription, arguments: dict[str, object], *, key: str) -> Seen:
        async with self._lock:
            encoded = msgspec.Raw(msgspec.json.encode(arguments))
            body = ToolRequest(self._index, tool.name, encoded, key)
            reply = await self._act("tool", body, tool.timeout)
            if reply.observation is not None:
                return reply.observation.observation()
            if reply.content is None:
                raise EnvironmentBroken(f"{self._connection.safe_url} answered no content")
            return reply.content


class EnvironmentEndpoint:
    """The description of a server, from which the environment of each trajectory is created."""

    def __init__(self, url: str, description: Description, *, token: str | None = None):
        self.url = url
        self.description = description
        self._token = token

    @classmethod
    async def describe(
        cls, url: str, *, token: str | None = None, timeout: float = DESCRIBE_SECONDS
    ) -> "EnvironmentEndpoint":
        """Asks the server for its description. The result can be used in any event loop."""
        connection = HttpConnection(url, token=token)
        try:
            raw = await connection.request("GET", "/", within=timeout)
        finally:
            await connection.close()
        try:
            description = msgspec.json.decode(raw, type=Description)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise UsageError(f"{connection.safe_url} serves no environment: {error}") from error
        if description.protocol != PROTOCOL:
            raise UsageError(
                f"{connection.safe_url} speaks version {description.protocol} of the protocol; "
                f"this Holdfast speaks {PROTOCOL}"
            )
        return cls(url, description, token=token)

    def environment(
        self,
        *,
        task: object = None,
        recovery: Recovery | str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> HttpEnvironment:
        """Creates the environment of one trajectory. Opens no connection yet."""
        return HttpEnvironment(
            self.url,
            task=task,
            token=self._token,
            recovery=recovery,
            timeout=timeout,
            description=self.description,
        )


def _as_json(task: object) -> msgspec.Raw:
    try:
        return msgspec.Raw(msgspec.json.encode(task, order="deterministic"))
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"an environment's `task` is JSON: {error}") from error


def _level(recovery: Recovery | str | None, description: Description | None) -> Recovery:
    if recovery is None:
        return description.recovery if description else Recovery.REPLAY
    try:
        level = Recovery(recovery)
    except ValueError:
        levels = ", ".join(Recovery)
        raise UsageError(f"{recovery!r} is not a recovery level; there are {levels}") from None
    if level is Recovery.SNAPSHOT and description is not None and not description.snapshots:
        raise UsageError(f"{description.name} has no snapshots; recovery='snapshot' needs them")
    return level
