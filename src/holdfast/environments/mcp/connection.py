"""How an MCP server is reached: a command that is started, or a URL.

Knows what may be told of it: neither the values of headers, tokens and environment variables, nor
credentials in a URL or behind a flag, are ever part of a message, a log or a record.
"""

import re
import shlex
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import PurePath
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from msgspec import Struct

from holdfast.environments.mcp import sdk_v1 as first
from holdfast.environments.mcp.sdk_v1 import is_first
from holdfast.environments.mcp.server_log import McpTexts
from holdfast.records.errors import UsageError
from holdfast.records.redaction import REDACTED, hide, hide_credentials, hide_variables, redact

if TYPE_CHECKING:
    import httpx2
    from mcp.client import Transport
    from mcp.client._transport import TransportStreams

SEED = "HOLDFAST_SEED"
MAX_SHOWN = 300
_SECRET = re.compile(r"(?i)auth|cookie|credential|key|password|secret|token")
_CONNECT_SECONDS = 30.0
_READ_MARGIN = 30.0


class Stdio(Struct, frozen=True):
    """A command; its process is the session."""

    command: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str | None = None

    def __post_init__(self) -> None:
        hide_variables(self.env)

    @property
    def described(self) -> str:
        shown = shlex.join((self.command, *_masked(self.args)))
        return f"`{redact(shown)[:MAX_SHOWN]}`"

    @property
    def identity(self) -> str:
        """Where the command is installed does not matter; what it is told does."""
        return redact(shlex.join((PurePath(self.command).name, *_masked(self.args))))

    @property
    def secrets(self) -> Sequence[str]:
        masked = zip(self.args, _masked(self.args), strict=True)
        return [*self.env.values(), *(arg for arg, shown in masked if arg != shown)]

    def transport(
        self, words: McpTexts, lost: Callable[[], None], *, seed: int | None, timeout: float
    ) -> "Transport":
        from holdfast.environments.mcp.process import Command, served

        env = self.env if seed is None else {SEED: str(seed), **self.env}
        return served(Command((self.command, *self.args), env, self.cwd), words, lost)


class Http(Struct, frozen=True):
    """A URL that speaks streamable HTTP; the session is the server's to keep."""

    url: str
    headers: dict[str, str] = {}

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(
                f"{self.described} is no http or https URL; for a command, use McpServer.stdio"
            )
        hide_credentials(self.url)
        for name, value in self.headers.items():
            if _SECRET.search(name):
                hide(value)
                hide(value.rpartition(" ")[2])

    @property
    def described(self) -> str:
        parts = urlsplit(self.url)
        return redact(urlunsplit((parts.scheme, _host(parts.netloc), parts.path, "", "")))

    @property
    def identity(self) -> str:
        """A server that moved is still the same."""
        return urlsplit(self.url).path

    @property
    def secrets(self) -> Sequence[str]:
        parts = urlsplit(self.url)
        values = [one for value in self.headers.values() for one in (value, value.split(" ")[-1])]
        # The whole URL too, lest an error quote it with its query.
        return [*values, *(one for one in (parts.username, parts.password, parts.query) if one)]

    def transport(
        self, words: McpTexts, lost: Callable[[], None], *, seed: int | None, timeout: float
    ) -> "Transport":
        connect, read = min(_CONNECT_SECONDS, timeout), timeout + _READ_MARGIN
        if is_first():
            return first.http(
                self.url, headers=self.headers, timeout=(connect, read), words=words, lost=lost
            )
        return _http(self, words, connect=connect, read=read)


Connection = Stdio | Http


@asynccontextmanager
async def _http(
    server: Http, words: McpTexts, *, connect: float, read: float
) -> "AsyncIterator[TransportStreams]":
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    from holdfast.environments.mcp.process import MAX_MESSAGE

    async def note(response: "httpx2.Response") -> None:
        if response.is_error and response.request.method == "POST":
            words.say(f"HTTP {response.status_code} {response.reason_phrase}")

    limits = httpx2.Timeout(connect, read=read)
    async with (
        httpx2.AsyncClient(
            headers=server.headers, timeout=limits, event_hooks={"response": [note]}
        ) as client,
        streamable_http_client(
            server.url, http_client=client, max_sse_event_size=MAX_MESSAGE
        ) as streams,
    ):
        yield streams


def _masked(args: Sequence[str]) -> list[str]:
    """`--api-key abc` as `--api-key [redacted]`."""
    return list(_each_masked(args))


def _each_masked(args: Sequence[str]) -> Iterator[str]:
    after_secret = False
    for arg in args:
        is_flag = arg.startswith("-")
        yield REDACTED if after_secret and not is_flag else redact(arg)
        after_secret = is_flag and "=" not in arg and _SECRET.search(arg) is not None


def _host(netloc: str) -> str:
    return netloc.rpartition("@")[2]
