"""How an MCP server is reached: by a command that is started, or by a URL.

Secrets are the values of headers, tokens and environment variables, and credentials in a URL or
after a flag. They never appear in a message, a log or a record. For error messages, the last lines
that a server wrote outside of the protocol are kept, without secrets and limited in size.
"""

import re
import shlex
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import PurePath
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from msgspec import Struct

from holdfast.environments.mcp import sdk_v1
from holdfast.records.encoding.redaction import (
    REDACTED,
    SHORTEST,
    hide,
    hide_credentials,
    hide_variables,
    redact,
)
from holdfast.records.errors import UsageError

if TYPE_CHECKING:
    import httpx2
    from mcp.client import Transport
    from mcp.client._transport import TransportStreams

MAX_LINES = 20
MAX_LINE = 400
MAX_PARTIAL_BYTES = 64 * 1024


class ServerLog:
    """The last lines that a server wrote to stderr, or to stdout by mistake, and how the server
    ended."""

    def __init__(self, secrets: Iterable[str] = ()):
        self.ending = ""
        """How the server ended, for example "it ended with exit status 3"."""
        # Longest first: one secret may begin with another.
        usable = (secret for secret in secrets if len(secret) >= SHORTEST)
        self._secrets = sorted(usable, key=len, reverse=True)
        self._lines: deque[str] = deque(maxlen=MAX_LINES)
        self._partial = b""

    def feed(self, data: bytes) -> None:
        """Adds the complete lines of a stream. Keeps an incomplete last line for the next call."""
        *lines, partial = (self._partial + data).split(b"\n")
        for line in lines[-MAX_LINES:]:
            self.add(line.decode("utf-8", "replace"))
        # A line without end is dropped whole, because a part of it might begin inside a secret.
        self._partial = partial if len(partial) <= MAX_PARTIAL_BYTES else b""

    def add(self, line: str) -> None:
        # Redacted before it is cut, because half a secret would not be recognized.
        line = self._redact(line.strip()[: 16 * MAX_LINE])[:MAX_LINE]
        if line and line not in list(self._lines)[-1:]:
            self._lines.append(line)

    def _redact(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, REDACTED)
        return redact(text)

    def append_to(self, message: str) -> str:
        """Returns `message`, followed by how the server ended and by its last lines."""
        if self._partial:
            self.feed(b"\n")
        message = "; ".join(filter(None, (self._redact(message), self.ending)))
        if not self._lines:
            return message
        return f"{message}; its last output:\n" + "\n".join(f"  | {line}" for line in self._lines)


SEED = "HOLDFAST_SEED"
MAX_DESCRIBED = 300
_SECRET = re.compile(r"(?i)auth|cookie|credential|key|password|secret|token")
_CONNECT_SECONDS = 30.0
_READ_MARGIN_SECONDS = 30.0


class Stdio(Struct, frozen=True):
    """An MCP server that is started as a command. Each session has its own process."""

    command: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str | None = None

    def __post_init__(self) -> None:
        hide_variables(self.env)

    @property
    def described(self) -> str:
        line = shlex.join((self.command, *_masked(self.args)))
        return f"`{redact(line)[:MAX_DESCRIBED]}`"

    @property
    def identity(self) -> str:
        """The command without its folder, and the arguments of the command."""
        return redact(shlex.join((PurePath(self.command).name, *_masked(self.args))))

    @property
    def secrets(self) -> Sequence[str]:
        masked = zip(self.args, _masked(self.args), strict=True)
        return [*self.env.values(), *(arg for arg, safe in masked if arg != safe)]

    def transport(
        self, log: ServerLog, lost: Callable[[], None], *, seed: int | None, timeout: float
    ) -> "Transport":
        from holdfast.environments.mcp.process import Command, run_server

        env = self.env if seed is None else {SEED: str(seed), **self.env}
        return run_server(Command((self.command, *self.args), env, self.cwd), log, lost)


class Http(Struct, frozen=True):
    """An MCP server at a URL, reached by streamable HTTP. The server keeps the session's state."""

    url: str
    headers: dict[str, str] = {}

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(
                f"{self.described} is not an http or https URL; for a command, use McpServer.stdio"
            )
        hide_credentials(self.url)
        for name, value in self.headers.items():
            if _SECRET.search(name):
                hide(value)
                hide(value.rpartition(" ")[2])

    @property
    def described(self) -> str:
        parts = urlsplit(self.url)
        host = parts.netloc.rpartition("@")[2]
        return redact(urlunsplit((parts.scheme, host, parts.path, "", "")))

    @property
    def identity(self) -> str:
        """The path of the URL, without the host, because a server may move."""
        return urlsplit(self.url).path

    @property
    def secrets(self) -> Sequence[str]:
        parts = urlsplit(self.url)
        values = [
            *self.headers.values(),
            *(value.split(" ")[-1] for value in self.headers.values()),
        ]
        # Includes the query, because an error may quote the whole URL.
        return [*values, *filter(None, (parts.username, parts.password, parts.query))]

    def transport(
        self, log: ServerLog, lost: Callable[[], None], *, seed: int | None, timeout: float
    ) -> "Transport":
        connect, read = min(_CONNECT_SECONDS, timeout), timeout + _READ_MARGIN_SECONDS
        if sdk_v1.is_installed():
            return sdk_v1.http(
                self.url, headers=self.headers, timeout=(connect, read), log=log, lost=lost
            )
        return _http(self, log, connect=connect, read=read)


Connection = Stdio | Http


@asynccontextmanager
async def _http(
    server: Http, log: ServerLog, *, connect: float, read: float
) -> "AsyncIterator[TransportStreams]":
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    from holdfast.environments.mcp.process import MAX_MESSAGE_BYTES

    async def log_error(response: "httpx2.Response") -> None:
        if response.is_error and response.request.method == "POST":
            log.add(f"HTTP {response.status_code} {response.reason_phrase}")

    limits = httpx2.Timeout(connect, read=read)
    async with (
        httpx2.AsyncClient(
            headers=server.headers, timeout=limits, event_hooks={"response": [log_error]}
        ) as client,
        streamable_http_client(
            server.url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES
        ) as streams,
    ):
        yield streams


def _masked(args: Sequence[str]) -> Iterator[str]:
    """Masks values of secret flags: `--api-key abc` becomes `--api-key [redacted]`."""
    after_secret = False
    for arg in args:
        is_flag = arg.startswith("-")
        yield REDACTED if after_secret and not is_flag else redact(arg)
        after_secret = is_flag and "=" not in arg and _SECRET.search(arg) is not None
