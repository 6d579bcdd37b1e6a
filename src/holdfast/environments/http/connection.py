"""HttpConnection: one client's requests to an environment server, with their retries and errors.

The only place that reads status codes and socket errors of that server. A request may be repeated,
since the server runs nothing twice: a few times after transport errors, and while the server has no
room. All of it within the caller's timeout.
"""

import asyncio
from collections.abc import Mapping
from time import time

import aiohttp
import msgspec

from holdfast.addresses import is_http_address
from holdfast.environments.http.protocol import JSON, MAX_RESPONSE_BYTES, ErrorReply, check_token
from holdfast.policy.retry import RetryPolicy, retry_after
from holdfast.records.encoding.redaction import hide_credentials, redact
from holdfast.records.errors import EnvironmentBroken, HoldfastError, UsageError
from holdfast.server_tokens import known_token

TRIES = 5
_PAUSES = RetryPolicy(base=0.5, cap=10.0)
_CONNECT_SECONDS = 10.0
_MAX_MESSAGE = 2_000
_UNREACHABLE = frozenset({502, 503, 504})
"""Statuses of a proxy that cannot reach the server."""
_encode = msgspec.json.Encoder().encode


class _Retry(Exception):
    """This try failed; another may succeed."""

    def __init__(self, message: str, *, wait: float | None = None):
        super().__init__(message)
        self.wait = wait
        """The seconds of the server's `Retry-After`, if it sent one."""


class HttpConnection:
    """Opened by its first request. After `close`, the next request opens it again."""

    def __init__(self, url: str, *, token: str | None = None):
        self.url = _address(url)
        hide_credentials(self.url)
        self.safe_url = redact(self.url)
        self._token = check_token(token)
        self._client: aiohttp.ClientSession | None = None

    async def request(
        self, method: str, path: str, body: object = None, *, within: float, tries: int = TRIES
    ) -> bytes:
        """The response's body. Raises `EnvironmentBroken`, or `UsageError` if no retry can help."""
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
        found = "one with an @" if "@" in url else repr(redact(url))
        raise UsageError(
            "an environment's address looks like http://127.0.0.1:8080 (a token goes into "
            f"`token`), not {found}"
        )
    return url.rstrip("/")


def _route(path: str) -> str:
    """A path without the session's name, so that equal failures have equal messages."""
    parts = path.split("/")
    return "/".join([*parts[:2], "…", *parts[3:]]) if len(parts) > 2 else path


def _message(raw: bytes) -> str:
    try:
        error = msgspec.json.decode(raw, type=ErrorReply).error
        text = f"{error.type}: {error.message}"
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        text = raw[:_MAX_MESSAGE].decode("utf-8", "replace") or "(no body)"
    return redact(text)[:_MAX_MESSAGE]
