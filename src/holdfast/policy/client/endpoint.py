"""One replica of an inference engine, over HTTP.

Turns what can happen to a request into our errors: status codes (`denied` says what to do about
some) and socket errors are read nowhere else. It does not retry and does not wait; `call` does.
What it knows of its engine (dialect, model, longest context) is found out by `discovery` and set
here.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec

from holdfast.clock import Clock
from holdfast.policy.client.circuit_breaker import CircuitBreaker
from holdfast.policy.client.completion_builder import Sampled, Tokens
from holdfast.policy.client.probe import UNREACHABLE, say, why_it_cannot_sample
from holdfast.policy.client.served_model import Models, Seeds, ServedModel
from holdfast.policy.dialects import DIALECTS
from holdfast.policy.dialects.dialect import (
    UNREADABLE,
    Dialect,
    EngineSays,
    Kind,
    Reader,
    SampleRequest,
    Unusable,
)
from holdfast.policy.dialects.prompt_json import PromptCache
from holdfast.policy.dialects.reading import without_echo
from holdfast.policy.dialects.sse import END, SseParser
from holdfast.policy.retry import RetryPolicy, retry_after
from holdfast.records.encoding.redaction import hide, hide_credentials, redact
from holdfast.records.errors import (
    BadAnswer,
    BadRequest,
    ContextOverflow,
    EngineUnavailable,
    PolicyError,
    PolicyRefused,
    Truncated,
    UsageError,
)
from holdfast.records.samples.logprobs import LogprobsMode

CONNECT_SECONDS = 10.0
PROBE_CONNECT_SECONDS = 5.0
PROBE_SECONDS = 20.0
"""An engine under full load takes many seconds for the smallest answer, and is not down."""
_OUTAGE_STATUSES = frozenset({502, 503, 504})
_TOO_LONG = re.compile(
    r"(?i)maximum context length|context.?length|max_model_len"
    r"|(?:prompt|input)[^.]{0,80}\bis too long"
)
_QUERY = re.compile(r"(?i)(https?://[^\s?#\"'<>]+)[?#][^\s\"'<>]+")
_DATA = re.compile(r"(?i)data:[a-z0-9.+/;=-]+,[^\s\"'<>]*")
_MAX_ANSWER = 1 << 28
_MAX_REFUSAL = 1 << 20
_MAX_SAID = 1_000
_MAX_ID = 512
_EVIDENCE = 300
_SELF = "the engine"
_encoder = msgspec.json.Encoder()
_KEY_MISSING = (
    "it was sent no key: put it into HOLDFAST_API_KEY, or name the variable that holds it with "
    "--api-key-env (from Python: api_key)"
)
_KEY_REFUSED = (
    "it does not take the key that it was sent: that of HOLDFAST_API_KEY, or of the variable that "
    "--api-key-env names (from Python: api_key)"
)


class Denied(PolicyRefused):
    """Made by `denied`, for these statuses alone."""

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = status


def _quotable(said: str) -> str:
    """What an engine says, without secrets. It may quote an image, or the address of one, with a
    query that is a signature."""
    return redact(_DATA.sub("data:…", _QUERY.sub(r"\1?…", said)))[:_MAX_SAID]


class Endpoint:
    """One base address. Safe to share by any number of calls of one loop."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        api_key: str | None,
        retry: RetryPolicy,
        patience: float,
        connections: int,
        clock: Clock,
        dialect: Dialect = DIALECTS[Kind.VLLM],
    ):
        self.url = base_url(url)
        self.model = model
        self.name = redact(self.url)
        self.dialect = dialect
        self.described = ServedModel(model)
        self.seeds = Seeds.REQUEST
        self.logprobs_mode = LogprobsMode.UNKNOWN
        self.running = 0
        """Calls under way."""
        self.draining = False
        """Whether it gets no new calls."""
        self.introduce: Callable[[], Awaitable[str | None]] | None = None
        """Of a replica that nobody has seen up: finds out what it is, or why it is of no use."""
        self.recheck: Callable[[ServedModel], Awaitable[str | None]] | None = None
        """Of a replica that is back: whether it is still of use, or why not."""
        self.expected_version: str | None = None
        """The weights that it must have to be given work again after an outage."""
        self.prompt_cache = PromptCache()
        """What it was sent, for those who send it more."""
        self._api_key = _checked(api_key)
        hide(api_key)
        hide_credentials(self.url)
        self._retry = retry
        self._connections = connections
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None
        # A whole answer has a time to be there; a stream only has to go on.
        self._timeouts = {
            False: aiohttp.ClientTimeout(total=retry.try_timeout, sock_connect=CONNECT_SECONDS),
            True: aiohttp.ClientTimeout(
                sock_read=retry.stall_timeout, sock_connect=CONNECT_SECONDS
            ),
        }
        self.gate = CircuitBreaker(self.name, self._probe, clock=clock, patience=patience)

    @property
    def takes_json(self) -> bool:
        """Whether it can keep a reply to JSON. All can but the embedded engine."""
        return self.described.owned_by != "holdfast"

    # --- looking at it

    async def models(self) -> list[ServedModel]:
        """What it serves. Raises what `UNREACHABLE` lists."""
        body = await self.get("/v1/models")
        return msgspec.json.decode(body, type=Models).data

    async def get(self, path: str) -> bytes:
        return await self.send("GET", path)

    async def send(
        self, method: str, path: str, body: object = None, *, seconds: float = PROBE_SECONDS
    ) -> bytes:
        """One small request; a status other than 200 is raised."""
        # Not through the pool: a probe that queues behind running calls would report an outage.
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=PROBE_CONNECT_SECONDS)
        data = None if body is None else _encoder.encode(body)
        headers = {} if data is None else {"Content-Type": "application/json"}
        async with (
            aiohttp.ClientSession(headers=self._headers(), timeout=timeout) as session,
            session.request(
                method, self.url + path, data=data, headers=headers, allow_redirects=False
            ) as response,
        ):
            raw = await _bounded(response, _MAX_REFUSAL)
            if response.status != 200:
                raise self._refusal(response.status, response.headers, raw)
            return raw

    async def _probe(self, in_earnest: bool) -> str | None:
        try:
            served = {item.id: item for item in await self.models()}
        except UNREACHABLE as error:
            return say(error)
        if (model := served.get(self.model)) is None:
            return f"it no longer serves {self.model!r}"
        if self.introduce is not None:
            if (why := await self.introduce()) is not None:
                return why
            self.introduce = None
        elif self.recheck is not None and (why := await self.recheck(model)) is not None:
            return why
        if (why := await self._wrong_version()) is not None or not in_earnest:
            return why
        return await why_it_cannot_sample(self.send, self.dialect, self.model)

    async def _wrong_version(self) -> str | None:
        if self.expected_version is None or (version := await self.version()) is None:
            return None
        if version == self.expected_version:
            return None
        return f"it came back with weights {version!r}; the run is at {self.expected_version!r}"

    async def version(self) -> str | None:
        """The weights that it says it has; None where it does not say."""
        path = "/get_model_info" if self.dialect.kind is Kind.SGLANG else "/weight_info"
        try:
            found = msgspec.json.decode(await self.get(path))
        except UNREACHABLE:
            return None
        version = found.get("weight_version") if isinstance(found, dict) else None
        return version if isinstance(version, str) else None

    # --- asking it

    async def answer(
        self, attempt: SampleRequest, sampled: Sampled, *, before: Callable[[], None]
    ) -> None:
        """One request, one answer, all of it taken into `sampled`; `before` is called first."""
        async with self._post(attempt) as response:
            raw = await _bounded(response, _MAX_ANSWER)
        before()
        try:
            sampled.take(
                self.dialect.whole(without_echo(raw, attempt.prompt_json)), model=self.model
            )
        except (Unusable, EngineSays) as error:
            raise self._known_to_fit(self._bad(error, raw), attempt) from error

    async def stream(self, attempt: SampleRequest, sampled: Sampled) -> AsyncIterator[None]:
        """Yields whenever something new was taken into `sampled`, until the stream ends."""
        read, events = self.dialect.reader(), SseParser()
        async with self._post(attempt) as response:
            async for chunk in response.content.iter_any():
                found = events.feed(chunk)
                self._take_events(found, read, sampled, attempt)
                yield  # Also at the end: the caller has not seen what came with it.
                if found and found[-1] == END:
                    return

    def _take_events(
        self, events: list[bytes], read: Reader, sampled: Sampled, attempt: SampleRequest
    ) -> None:
        """Takes what came together; a run of events that only bring tokens is checked as one."""
        run, data = Tokens(), b""
        # An engine repeats the prompt at the beginning, if at all.
        prompt = None if sampled.fresh else attempt.prompt_json
        died: EngineSays | None = None
        try:
            for data in events:
                if data == END:
                    break
                try:
                    piece = read(data if prompt is None else without_echo(data, prompt))
                except EngineSays as error:
                    died = error  # What it sampled before that is good.
                    break
                if piece is not None and not run.takes(piece, data):
                    run.give_to(sampled, self.model)
                    sampled.take(piece, model=self.model)
            run.give_to(sampled, self.model)
        except Unusable as error:
            raise self._bad(error, error.evidence or data) from error
        if died is not None:
            raise self._known_to_fit(self._bad(died, data), attempt) from died

    def _bad(
        self, error: Unusable | EngineSays, raw: bytes
    ) -> PolicyError | BadRequest | Truncated:
        if isinstance(error, EngineSays):
            return self._refused(error.status, _quotable(str(error)), {})
        evidence = redact(raw[: 2 * _EVIDENCE].decode("utf-8", "replace"))[:_EVIDENCE]
        return BadAnswer(f"the engine's answer cannot be used: {error}. It begins: {evidence}")

    @asynccontextmanager
    async def _post(self, attempt: SampleRequest) -> AsyncIterator[aiohttp.ClientResponse]:
        """The response, once its status is known to be good. Socket errors come out as ours."""
        headers = {"Content-Type": "application/json", "X-Request-Id": _header(attempt.request.id)}
        try:
            async with self._client().post(
                self.url + self.dialect.path,
                data=_encoder.encode(self.dialect.body(attempt)),
                headers=headers,
                timeout=self._timeouts[attempt.stream],
                # Elsewhere is not what was asked: neither the prompt nor the answer goes there.
                allow_redirects=False,
            ) as response:
                if response.status != 200:
                    raw = await _bounded(response, _MAX_REFUSAL)
                    raise self._known_to_fit(
                        self._refusal(response.status, response.headers, raw), attempt
                    )
                yield response
        except aiohttp.ConnectionTimeoutError as error:
            raise EngineUnavailable(
                f"{self.name} took no connection within {CONNECT_SECONDS:g} s", connected=False
            ) from error
        except TimeoutError as error:
            raise EngineUnavailable(self._too_slow(stream=attempt.stream)) from error
        except (aiohttp.ClientConnectionError, OSError) as error:
            raise EngineUnavailable(
                f"connection to {self.name} lost: {say(error)}", connected=False
            ) from error
        except aiohttp.ClientError as error:
            raise EngineUnavailable(f"{self.name}: {say(error)}") from error

    def _known_to_fit(self, error: Exception, attempt: SampleRequest) -> Exception:
        """An engine that calls too long what it has said it takes is out of order."""
        longest = self.described.max_model_len
        if not isinstance(error, ContextOverflow) or longest is None:
            return error
        tokens = len(attempt.prompt) + attempt.max_tokens
        if tokens > longest or not self.dialect.has_tokens:
            return error
        return EngineUnavailable(
            f"{self.name} refuses {tokens} tokens as too long, though it takes {longest}: {error}"
        )

    def _too_slow(self, *, stream: bool) -> str:
        if stream:
            return f"{self.name} sent nothing for {self._retry.stall_timeout:g} s"
        return f"{self.name} did not answer within {self._retry.try_timeout:g} s"

    def _refusal(
        self, status: int, headers: Mapping[str, str], body: bytes
    ) -> PolicyError | BadRequest | Truncated:
        return self._refused(status, _quotable(_message(body)), headers)

    def _refused(
        self, status: int, said: str, headers: Mapping[str, str]
    ) -> PolicyError | BadRequest | Truncated:
        """An error status as one of our errors: with `denied`, all that reads status codes."""
        said = self._without_address(said)
        where = f"{self.name} answered {status}: {said}"
        kind, has_key = self.dialect.kind, bool(self._api_key)
        if (denial := denied(status, where, dialect=kind, has_key=has_key)) is not None:
            return denial
        if status in (408, 409, 425, 429) or status >= 500:
            wait = retry_after({k.lower(): v for k, v in headers.items()}, now=self._clock.now())
            return EngineUnavailable(
                where,
                retry_after=wait,
                connected=status not in _OUTAGE_STATUSES,
                is_busy=status == 429,
            )
        if status in (400, 413, 422) and _TOO_LONG.search(said):
            return ContextOverflow(said)
        return BadRequest(where, said=f"the engine answered {status}: {said}")

    def _without_address(self, said: str) -> str:
        """What an engine says may reach an agent, and where it is may not."""
        address = urlsplit(self.url).netloc.rpartition("@")[2]
        return said.replace(self.name, _SELF).replace(address, _SELF)

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._connections),
                headers=self._headers(),
                read_bufsize=1 << 20,
            )
        return self._session

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._api_key}"} if self._api_key else {}

    async def aclose(self) -> None:
        await self.gate.aclose()
        if self._session is not None:
            await self._session.close()
            # aiohttp closes its transports in the next turn of the loop.
            await asyncio.sleep(0)


def denied(status: int, said: str, *, dialect: Kind, has_key: bool) -> Denied | None:
    """What to do about a key, or which dialect was spoken, is added to what the engine said; None
    for a status that another request, or the same one later, may not meet."""
    if status in (404, 405):
        return Denied(f"{said} (asked in the dialect {dialect.value})", status)
    if status in (401, 403):
        return Denied(f"{said}; {_KEY_REFUSED if has_key else _KEY_MISSING}", status)
    return Denied(said, status) if 300 <= status < 400 else None


async def _bounded(response: aiohttp.ClientResponse, most: int) -> bytes:
    """The whole body; one that is larger than any answer is not read to its end."""
    parts, size = [], 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > most:
            raise BadAnswer(f"the engine's answer is larger than {most:,} bytes")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def base_url(url: str) -> str:
    """`http://host:port`, with or without a trailing `/v1`."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.netloc) and parts.port != 0
    except ValueError:  # A port or an IPv6 address that is none.
        usable = False
    if not usable:
        # One with an @ may hold a password in a shape that nobody knows.
        shown = "what was given" if "@" in url else repr(redact(url))
        raise UsageError(
            "an inference engine's address (--policy) looks like http://127.0.0.1:8000, not "
            f"{shown}"
        )
    return url.rstrip("/").removesuffix("/v1")


def _message(body: bytes) -> str:
    try:
        error = msgspec.json.decode(body)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (*UNREADABLE, KeyError, TypeError):
        return body[:_MAX_SAID].decode("utf-8", "replace") or "(no body)"


def _header(text: str) -> str:
    """A request id as a header: task ids are user data, and may hold anything."""
    if not (text.isascii() and text.isprintable()):
        text = quote(text, safe="/:", errors="backslashreplace")
    return text[:_MAX_ID]


def _checked(api_key: str | None) -> str | None:
    if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
        raise UsageError("the API key holds a line break or another character that no key has")
    return api_key
