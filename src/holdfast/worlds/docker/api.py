"""ContainerApi: sends requests to a container engine, and interprets its errors.

Every request has a deadline. If the connection fails, `ProviderDown` is raised, because it is
unknown whether the request took effect. An answer with an error status raises `EngineRefusal`, and
the caller decides what the status means for its request.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

import aiohttp
import msgspec

from holdfast.worlds.contract.failures import ProviderDown, ProviderFull
from holdfast.worlds.docker.address import ContainerEngine

NEWEST = (1, 44)
"""The newest version of the API that this client was written for."""
CONNECTIONS = 64
SECONDS = 120.0
CONNECT_SECONDS = 10.0
PART_BYTES = 1 << 20


class EngineRefusal(Exception):
    """The engine refused a request."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status
        self.message = message


class ContainerApi:
    """The HTTP client of one engine. Connections are opened when first needed, and belong to one
    event loop."""

    def __init__(self, address: ContainerEngine):
        self.address = address
        self._session: aiohttp.ClientSession | None = None
        self._prefix = ""
        self._negotiating = asyncio.Lock()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def get(self, path: str, **query: object) -> Any:
        return await self.call("GET", path, query=query)

    async def post(self, path: str, body: object = None, **query: object) -> Any:
        return await self.call("POST", path, body=body, query=query)

    async def delete(self, path: str, **query: object) -> Any:
        return await self.call("DELETE", path, query=query)

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        query: Mapping[str, object] | None = None,
        seconds: float = SECONDS,
    ) -> Any:
        """Sends a request. Returns the decoded answer, or None if the answer is empty."""
        data = None if body is None else msgspec.json.encode(body)
        async with (
            self._within(seconds, f"{method} {path}"),
            self._request(method, await self.path(path, query), data) as response,
        ):
            return _decoded(await response.read())

    async def lines(
        self, path: str, *, query: Mapping[str, object], data: object = None, seconds: float
    ) -> AsyncIterator[dict[str, Any]]:
        """Yields the messages of a pull, a build or an import."""
        async with self._within(seconds, f"POST {path}"):
            url = await self.path(path, query)
            async with self._request("POST", url, data, "application/x-tar") as response:
                async for line in response.content:
                    if line.strip():
                        yield json.loads(line)

    async def stream(self, path: str, *, seconds: float) -> AsyncIterator[bytes]:
        """Yields the body of an answer in parts."""
        async with (
            self._within(seconds, f"GET {path}"),
            self._request("GET", await self.path(path, {})) as response,
        ):
            async for part in response.content.iter_chunked(PART_BYTES):
                yield part

    async def path(self, path: str, query: Mapping[str, object] | None) -> str:
        await self.negotiate()
        asked = {name: _query_value(value) for name, value in (query or {}).items()}
        return f"{self._prefix}{path}" + (f"?{urlencode(asked)}" if asked else "")

    async def negotiate(self) -> None:
        """Agrees with the engine, once, on the version of the API to use."""
        async with self._negotiating:
            if self._prefix:
                return
            async with (
                self._within(SECONDS, "GET /_ping"),
                self._request("GET", "/_ping") as response,
            ):
                version = response.headers.get("Api-Version", "")
            theirs = tuple(int(part) for part in version.split(".")) if version else NEWEST
            self._prefix = "/v{}.{}".format(*min(theirs, NEWEST))

    def _request(
        self, method: str, path: str, data: object = None, kind: str = "application/json"
    ) -> "_Request":
        if self._session is None:
            address = self.address
            connector = (
                aiohttp.UnixConnector(address.socket, limit=CONNECTIONS)
                if address.socket
                else aiohttp.TCPConnector(limit=CONNECTIONS)
            )
            # Each call has its own deadline; only connecting is bounded here.
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
            self._session = aiohttp.ClientSession(
                address.base, connector=connector, timeout=timeout, read_bufsize=PART_BYTES
            )
        headers = {"Content-Type": kind} if data is not None else {}
        return _Request(self._session.request(method, path, data=data, headers=headers))

    @asynccontextmanager
    async def _within(self, seconds: float, what: str) -> AsyncIterator[None]:
        """Raises `ProviderDown` if the block takes longer, or if its connection fails."""
        deadline = asyncio.timeout(seconds)
        try:
            async with deadline:
                yield
        except (OSError, aiohttp.ClientError, TimeoutError) as error:
            if deadline.expired():
                raise ProviderDown(f"{self.address} did not answer {what} in time") from error
            if isinstance(error, aiohttp.ClientConnectorError):
                raise self.address.unreachable(error.os_error) from error
            if isinstance(error, OSError):
                raise self.address.unreachable(error) from error
            broken = str(error) or type(error).__name__
            raise ProviderDown(f"{self.address} broke off {what}: {broken}") from error


class _Request:
    """A request as a context manager. Entering it raises an error if the answer has an error
    status."""

    def __init__(self, request: Any):
        self._request = request

    async def __aenter__(self) -> aiohttp.ClientResponse:
        response: aiohttp.ClientResponse = await self._request.__aenter__()
        if response.status >= 400:
            try:
                raise refusal_of(response.status, await response.read())
            finally:
                await self._request.__aexit__(None, None, None)
        return response

    async def __aexit__(self, *error: Any) -> None:
        await self._request.__aexit__(*error)


def refusal_of(status: int, body: bytes) -> Exception:
    """Returns the error for an answer with an error status: `ProviderFull` if the engine's disk is
    full, and `EngineRefusal` otherwise."""
    try:
        message = str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        message = body.decode("utf-8", "replace").strip() or f"HTTP {status}"
    if "no space left on device" in message.lower():
        return ProviderFull(f"the disk of the container engine is full: {message}")
    return EngineRefusal(status, " ".join(message.split()))


def _decoded(body: bytes) -> Any:
    return json.loads(body) if body.strip() else None


def _query_value(value: object) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    return value if isinstance(value, str | int) else json.dumps(value)  # type: ignore[return-value]
