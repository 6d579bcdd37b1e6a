"""Connection: what one client asks of an environment's server, and what can go wrong on the way.

The only place that reads status codes and socket errors of that server. A request may be sent
again, since the server does nothing twice: after transport errors a few times, and for as long as
the caller waits when the server has no room. Never for longer than that.
"""

import asyncio
from collections.abc import Mapping
from time import time
from urllib.parse import urlsplit

import aiohttp
import msgspec

from holdfast.environments.http.protocol import JSON, MAX_ANSWER, Troubled, checked_token
from holdfast.policy.retry import RetryPolicy, retry_after
from holdfast.records.errors import EnvironmentBroken, HoldfastError, UsageError
from holdfast.records.redaction import hide_credentials, redact

TRIES = 5
_PAUSES = RetryPolicy(base=0.5, cap=10.0)
_CONNECT_SECONDS = 10.0
_MAX_SAID = 2_000
_PASSING = frozenset({502, 503, 504})
"""What stands between us and the server says that it cannot be reached."""
_LOST = (aiohttp.ClientError, OSError)
_encode = msgspec.json.Encoder().encode


class _Again(Exception):
    """Nothing came of this try; another may do better."""

    def __init__(self, why: str, *, wait: float | None = None):
        super().__init__(why)
        self.wait = wait
        """Seconds after which the server wants to be asked again, if it does."""


class HttpConnection:
    """Opened by its first request; closed by `close`, and opened again by the next request."""

    def __init__(self, url: str, *, token: str | None = None):
        self.url = _address(url)
        hide_credentials(self.url)
        self.shown = redact(self.url)
        token = checked_token(token)
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._client: aiohttp.ClientSession | None = None

    async def ask(
        self, method: str, path: str, body: object = None, *, within: float, tries: int = TRIES
    ) -> bytes:
        """The answer. Raises `EnvironmentBroken`, or `UsageError` for what will never work."""
        data = None if body is None else _encode(body)
        last: list[_Again] = []
        try:
            async with asyncio.timeout(within) as deadline:
                return await self._persist(method, path, data, tries=tries, last=last)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            why = f" ({last[-1]})" if last else ""
            raise EnvironmentBroken(
                f"{self.shown} did not answer {method} {_kind(path)} within {within:g} s{why}"
            ) from error

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _persist(
        self, method: str, path: str, data: bytes | None, *, tries: int, last: list[_Again]
    ) -> bytes:
        failures = 0
        while True:
            try:
                return await self._try(method, path, data)
            except _Again as again:
                last[:] = [again]
                failures += again.wait is None
                if failures >= tries:
                    raise EnvironmentBroken(f"{self.shown} cannot be used: {again}") from again
                await asyncio.sleep(_PAUSES.delay(max(failures, 1), retry_after=again.wait))

    async def _try(self, method: str, path: str, data: bytes | None) -> bytes:
        if self._client is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS)
            self._client = aiohttp.ClientSession(headers=self._headers, timeout=timeout)
        headers = {} if data is None else {"Content-Type": JSON}
        try:
            async with self._client.request(
                method, self.url + path, data=data, headers=headers, allow_redirects=False
            ) as response:
                raw = await self._whole(response)
        except _LOST as error:
            raise _Again(
                f"connection lost: {redact(str(error)) or type(error).__name__}"
            ) from error
        if response.status in (200, 202):
            return raw
        raise self._refusal(response.status, response.headers, raw, path)

    async def _whole(self, response: aiohttp.ClientResponse) -> bytes:
        parts, size = [], 0
        async for part in response.content.iter_any():
            parts.append(part)
            size += len(part)
            if size > MAX_ANSWER:
                raise EnvironmentBroken(f"{self.shown} answers with more than {MAX_ANSWER:,} bytes")
        return b"".join(parts)

    def _refusal(
        self, status: int, headers: Mapping[str, str], raw: bytes, path: str
    ) -> HoldfastError | _Again:
        said = f"{self.shown} answered {status} to {_kind(path)}: {_message(raw)}"
        wait = retry_after({name.lower(): value for name, value in headers.items()}, now=time())
        if status == 429:
            return _Again(said, wait=wait or 0.0)
        if status in _PASSING:
            return _Again(said, wait=wait)
        if status in (401, 403):
            return UsageError(f"{said} (give the environment its `token`)")
        is_of_session = path.startswith("/sessions/")
        if status == 501 or 300 <= status < 400 or (status in (404, 405) and not is_of_session):
            return UsageError(said)
        return LostSession(said) if status == 404 else EnvironmentBroken(said)


class LostSession(EnvironmentBroken):
    """The server does not know the session: it was started again, or the session has expired."""


def _address(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.netloc) and parts.port != 0
    except ValueError:  # A port or an IPv6 address that is none.
        usable = False
    if not usable or "@" in url:
        # One with an @ may hold a password in a shape that nobody can tell.
        shown = "what was given" if "@" in url else repr(redact(url))
        raise UsageError(
            "an environment's address looks like http://127.0.0.1:8080 (a token goes into "
            f"`token`), not {shown}"
        )
    return url.rstrip("/")


def _kind(path: str) -> str:
    """A path without the session's name, which would make every failure another one."""
    parts = path.split("/")
    return "/".join([*parts[:2], "…", *parts[3:]]) if len(parts) > 2 else path


def _message(raw: bytes) -> str:
    try:
        error = msgspec.json.decode(raw, type=Troubled).error
        words = f"{error.type}: {error.message}"
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        words = raw[:_MAX_SAID].decode("utf-8", "replace") or "(no body)"
    return redact(words)[:_MAX_SAID]
