"""One replica of an inference engine, over HTTP.

Only this module turns status codes and socket errors into our errors. It does not retry or wait;
`call` does. `discovery` sets what is known of the engine (dialect, model, longest context).
"""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import urlsplit

import aiohttp
import msgspec

from holdfast.clock import Clock
from holdfast.policy.client.circuit_breaker import CircuitBreaker
from holdfast.policy.client.completion_builder import CompletionBuilder, TokenEvents
from holdfast.policy.client.connections import Connections
from holdfast.policy.client.http_sessions import (
    HttpSession,
    HttpSessions,
    Response,
    header_text,
    read_body,
)
from holdfast.policy.client.interruptible import Interruptible
from holdfast.policy.client.probe import (
    UNREACHABLE,
    describe_error,
    find_incarnation,
    find_sampling_fault,
    patiently,
    sanitize,
)
from holdfast.policy.dialects.dialect import (
    UNREADABLE,
    Dialect,
    EngineError,
    InvalidAnswer,
    Kind,
    Models,
    Piece,
    Reader,
    Seeds,
    ServedModel,
    add_extra,
    fields_of,
    remove_echo,
)
from holdfast.policy.dialects.prompt_json import PromptCache
from holdfast.policy.dialects.sse import END, SseParser
from holdfast.policy.policy import Request
from holdfast.policy.providers import base_url
from holdfast.policy.retry import RetryPolicy, retry_after
from holdfast.records.encoding.redaction import hide, hide_credentials, redact
from holdfast.records.errors import (
    BadAnswer,
    BadRequest,
    ContextOverflow,
    EndpointDown,
    EngineUnavailable,
    PolicyError,
    PolicyRefused,
    Truncated,
    UsageError,
)
from holdfast.records.samples.logprobs import LogprobsMode
from holdfast.records.samples.replica_weights import ReplicaWeights
from holdfast.server_tokens import known_token

CONNECT_SECONDS = 10.0
PROBE_CONNECT_SECONDS = 5.0
PROBE_SECONDS = 20.0
"""How long a small request waits for its answer. An engine under full load may take many seconds
even for the smallest answer."""
ANTHROPIC = "api.anthropic.com"
_OUTAGE_STATUSES = frozenset({502, 503, 504})
_TOO_LONG = re.compile(
    r"(?i)maximum context length|context.?length|max_model_len"
    r"|(?:prompt|input)[^.]{0,80}\bis too long"
)
_LIMIT, _NEWER_LIMIT = "max_tokens", "max_completion_tokens"
_WANTS_NEWER_LIMIT = re.compile(rf"(?is)\b{_LIMIT}\b.*\buse\b.*\b{_NEWER_LIMIT}\b")
_MAX_ANSWER_BYTES = 1 << 28
_MAX_ERROR_BYTES = 1 << 20
_EVIDENCE_CHARS = 300
_SELF = "the engine"
_encoder = msgspec.json.Encoder()
_KEY_MISSING = (
    "it was sent no key: put it into HOLDFAST_API_KEY, or name the variable that holds it with "
    "--api-key-env (from Python: api_key)"
)
_KEY_REJECTED = (
    "it does not take the key that it was sent: that of HOLDFAST_API_KEY, or of the variable that "
    "--api-key-env names (from Python: api_key)"
)


class Denied(PolicyRefused):
    """A refusal by the engine that a retry would not change. `status` is the HTTP status of the
    answer."""

    def __init__(self, message: str, status: int, remedy: str = ""):
        super().__init__(f"{message}; {remedy}" if remedy else message)
        self.status = status
        self.answered = message
        """The message without the remedy."""


class Endpoint:
    """One replica of an engine, at one base address. Any number of calls in one event loop can
    share the endpoint. Another event loop can use it after `change_loop`."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        api_key: str | None,
        retry: RetryPolicy,
        patience: float,
        new_connections: Callable[[], Connections],
        clock: Clock,
        dialect: Dialect,
    ):
        self.url = base_url(url)
        self.model = model
        self.name = redact(self.url)
        self.host = urlsplit(self.url).hostname or ""
        self.dialect = dialect
        self.described = ServedModel(model)
        self.seeds = Seeds.REQUEST
        self.logprobs_mode = LogprobsMode.UNKNOWN
        self.running = 0
        """The number of calls under way."""
        self.draining = False
        """Whether the endpoint gets no new calls, because it is being drained."""
        self.introduce: Callable[[], Awaitable[str | None]] | None = None
        """Called when a replica that was down from the beginning is up. Discovers the replica, and
        returns why it cannot be used, or None."""
        self.recheck: Callable[[ServedModel], Awaitable[str | None]] | None = None
        """Checks a replica that is back. Returns why it cannot be used, or None."""
        self.weights: str | None = None
        """The version of the replica's weights, as far as known."""
        self.record: ReplicaWeights | None = None
        """The record of the replica's weights, if a training sends and records them."""
        self.incarnation = ""
        """The identity of the engine's present start, or "" if the engine does not publish it."""
        self.look_at_weights: Callable[[Sequence[str]], Awaitable[str | None]] | None = None
        """Called with the names of the served models when a replica is back. Returns why the
        replica is unfit, or None."""
        self.caveat = ""
        """A line for people that says what the engine does not give in the chosen dialect, or "" if
        nothing is lost."""
        self.adapter = ""
        """The name of the served weights, if they are an adapter of the engine's model."""
        self.requested: Counter[str] = Counter()
        """Tries under way, counted by the name of the requested model."""
        self._limit_name = _LIMIT
        """The name of the parameter that bounds the tokens of a reply."""
        self._tries: set[Interruptible] = set()
        self.prompt_cache = PromptCache()
        """The last prompts, encoded in JSON."""
        self._api_key = _check_key(api_key)
        hide(api_key)
        hide_credentials(self.url)
        self._retry = retry
        self._new_connections = new_connections
        self.connections = new_connections()
        """The connections to this address. Each try waits for one of them before its time limits
        begin."""
        self._clock = clock
        self._sessions = HttpSessions(self._new_session)
        self._connections_made = 0
        # How many connections had been made when it was last asked.
        self._asked_at: int | None = None
        self._asking = asyncio.Lock()
        # A whole answer has a time limit. A stream only has to make progress.
        self._timeouts = {
            False: aiohttp.ClientTimeout(total=retry.try_timeout, sock_connect=CONNECT_SECONDS),
            True: aiohttp.ClientTimeout(
                sock_read=retry.stall_timeout, sock_connect=CONNECT_SECONDS
            ),
        }
        self.breaker = CircuitBreaker(self.name, self._probe, clock=clock, patience=patience)

    @property
    def takes_json(self) -> bool:
        """Returns whether the engine can constrain a reply to JSON. Only the embedded engine
        cannot."""
        return self.described.owned_by != "holdfast"

    def body(self, attempt: Request) -> dict[str, object]:
        """Returns the body of one try. Raises `Unsupported` if a member of `extra_body` is in the
        body already."""
        body = self.dialect.body(attempt)
        if self._limit_name != _LIMIT:
            body[self._limit_name] = body.pop(_LIMIT)
        if attempt.sampling.extra_body:
            add_extra(body, attempt.sampling.extra)
        return body

    @property
    def model_name(self) -> str:
        """Returns the model's name in requests."""
        return self.adapter or self.model

    def add_try(self, attempt: Interruptible) -> None:
        self.running += 1
        self.requested[attempt.name] += 1
        self._tries.add(attempt)

    def remove_try(self, attempt: Interruptible) -> None:
        self.running -= 1
        self.requested[attempt.name] -= 1
        self._tries.discard(attempt)

    def interrupt(self, error: PolicyError) -> None:
        """Ends all tries under way with an error. After `EngineUnavailable` the tries keep their
        tokens and continue elsewhere or later. After `BadAnswer` their tokens are dropped."""
        for attempt in tuple(self._tries):
            attempt.interrupt(error)

    @property
    def is_in_use(self) -> bool:
        return self.running > 0 or self.breaker.is_probing

    def change_loop(self) -> None:
        """Lets another event loop use the endpoint. Recreates what belongs to a loop."""
        self._asking = asyncio.Lock()
        self._tries.clear()
        self.requested.clear()
        self.running = 0
        self.connections = self._new_connections()
        self.breaker.change_loop()

    # --- small requests

    async def models(self) -> list[ServedModel]:
        """Returns the engine's models. Raises the errors of `UNREACHABLE`."""
        body = await self.send("GET", "/v1/models")
        return msgspec.json.decode(body, type=Models).data

    def _address(self, path: str) -> str:
        """Returns the URL of a path. `/v1/…` belongs to the API, any other path to the server."""
        if urlsplit(self.url).path and path.startswith("/v1/"):
            return self.url + path.removeprefix("/v1")
        return self.url.removesuffix("/v1") + path

    async def ask(self, path: str) -> bytes | None:
        """Returns the body of the engine's answer at a path, or None if the answer is an error.
        Raises `EndpointDown` if the engine does not answer."""
        try:
            return await self.send_patiently("GET", path)
        except EndpointDown:
            raise
        except UNREACHABLE:
            return None

    async def send_patiently(
        self, method: str, path: str, body: object = None, *, seconds: float = PROBE_SECONDS
    ) -> bytes:
        """Sends a request as `send` does, and repeats it if the engine does not answer. Raises
        `EndpointDown` if no answer comes at all."""
        send = partial(self.send, method, path, body, seconds=seconds)
        return await patiently(send, clock=self._clock, where=f"{self.name} at {path}")

    async def is_paused(self) -> bool:
        """Returns whether the engine reports that it is paused."""
        try:
            fields = msgspec.json.decode(await self.ask("/is_paused") or b"null")
        except UNREADABLE:
            return False
        return isinstance(fields, dict) and fields.get("is_paused") is True

    async def send(
        self, method: str, path: str, body: object = None, *, seconds: float = PROBE_SECONDS
    ) -> bytes:
        """Returns the response to one small request. Raises an error unless the status is 200."""
        is_ours = self.described.owner in ("holdfast", "vllm")
        # The server at this port may take a token of this user, or the user's key: try both.
        if (is_ours or not self._api_key) and (token := known_token(self.url)) is not None:
            headers = {"Authorization": f"Bearer {token}"}
            try:
                return await self._send_with(headers, method, path, body, seconds=seconds)
            except Denied as error:
                if error.status not in (401, 403):
                    raise
        return await self._send_with({}, method, path, body, seconds=seconds)

    async def _send_with(
        self, headers: dict[str, str], method: str, path: str, body: object, *, seconds: float
    ) -> bytes:
        # Not through the pool: a probe that waits behind running calls would report an outage.
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=PROBE_CONNECT_SECONDS)
        data = None if body is None else _encoder.encode(body)
        if data is not None:
            headers = headers | {"Content-Type": "application/json"}
        async with (
            aiohttp.ClientSession(headers=self._headers(), timeout=timeout) as session,
            session.request(
                method, self._address(path), data=data, headers=headers, allow_redirects=False
            ) as response,
        ):
            raw = await read_body(response, _MAX_ERROR_BYTES)
            if response.status != 200:
                raise self._response_error(response.status, response.headers, raw)
            return raw

    async def _probe(self, must_sample: bool) -> str | None:
        try:
            served = {item.id: item for item in await self.models()}
        except UNREACHABLE as error:
            return describe_error(error)
        if (model := served.get(self.model)) is None:
            return f"it no longer serves {self.model!r}"
        if self.introduce is not None:
            if (why := await self.introduce()) is not None:
                return why
            self.introduce, is_known = None, False
        else:
            is_known = True
        # Before a token is sampled, because sampling with half of the weights may end the engine.
        if self.look_at_weights is not None:
            try:
                if (why := await self.look_at_weights(tuple(served))) is not None:
                    return why
            except UNREACHABLE as error:
                return describe_error(error)
        if is_known and self.recheck is not None and (why := await self.recheck(model)) is not None:
            return why
        if must_sample:
            return await find_sampling_fault(self.send, self.dialect, self.model_name)
        return None

    async def version(self) -> str | None:
        """Returns the version of the engine's weights, or None if it is not published."""
        try:
            fields = fields_of(await self.send("GET", self.dialect.version_path))
        except UNREACHABLE:
            return None
        version = fields.get("weight_version")
        return version if isinstance(version, str) else None

    # --- which engine it is

    def has(self, record: ReplicaWeights) -> None:
        """Sets the record of the replica's weights, and with it their version and adapter."""
        self.record, self.weights = record, record.version
        self.adapter = "" if record.model == self.model else record.model

    @property
    def is_known(self) -> bool:
        return self._asked_at is not None

    async def ask_incarnation(self) -> None:
        """Asks the engine for its incarnation, which identifies its present start. Raises
        `EngineUnavailable` if the engine does not answer, or if it named its incarnation before and
        no longer does."""
        made = self._connections_made
        try:
            text = await find_incarnation(self.send, self.dialect.version_path)
        except (OSError, aiohttp.ClientError, *UNREADABLE) as error:
            why = f"{self.name} does not answer ({describe_error(error)})"
            raise EngineUnavailable(why, reached=False) from error
        if self.incarnation and not text:
            raise EngineUnavailable(f"{self.name} does not say when it was started", reached=False)
        self.incarnation, self._asked_at = text, made

    async def _know_incarnation(self) -> None:
        """Asks for the incarnation if new connections were made since the last time. A restart of
        the engine ends all old connections."""
        async with self._asking:
            if self._asked_at != self._connections_made:
                await self.ask_incarnation()

    def _count_connection(self) -> None:
        self._connections_made += 1

    # --- samples

    async def check_taken(self, attempt: Request) -> None:
        """Sends a request, and ends it as soon as the engine accepts it. Raises an error if the
        engine refuses it."""
        async with self._post(attempt):
            return

    async def answer(
        self, attempt: Request, sampled: CompletionBuilder, *, before: Callable[[], None]
    ) -> None:
        """Sends one request and adds the answer to `sampled`. Calls `before` when the answer has
        come."""
        raw = await self._ask(attempt)
        before()
        try:
            piece = self.dialect.whole(remove_echo(raw, attempt.prompt_json))
            sampled.take(self._without_base_versions(piece, attempt), model=attempt.model)
        except (InvalidAnswer, EngineError) as error:
            raise self._known_to_fit(self._bad(error, raw), attempt) from error

    async def _ask(self, attempt: Request) -> bytes:
        """Returns the body of a whole answer. If the server refuses `max_tokens` and names
        `max_completion_tokens`, as OpenAI's reasoning models do, sends that parameter from now
        on."""
        sent = self._limit_name
        try:
            return await self._read_answer(attempt)
        except BadRequest as error:
            if sent != _LIMIT or not _WANTS_NEWER_LIMIT.search(error.reason):
                raise
        self._limit_name = _NEWER_LIMIT
        return await self._read_answer(attempt)

    async def _read_answer(self, attempt: Request) -> bytes:
        async with self._post(attempt) as response:
            return await read_body(response, _MAX_ANSWER_BYTES)

    async def stream(
        self, attempt: Request, sampled: CompletionBuilder, *, before: Callable[[], None]
    ) -> AsyncIterator[None]:
        """Adds a stream's events to `sampled`, and yields after each chunk until the stream ends.
        Calls `before` before it adds the events of a chunk."""
        read, events = self.dialect.reader(), SseParser()
        async with self._post(attempt) as response:
            async for chunk in response.content.iter_any():
                found = events.feed(chunk)
                before()
                self._take_events(found, read, sampled, attempt)
                yield  # Also at the end, because the caller has not seen the last events.
                if found and found[-1] == END:
                    return

    def _take_events(
        self, events: list[bytes], read: Reader, sampled: CompletionBuilder, attempt: Request
    ) -> None:
        """Adds the events of one chunk. Checks a series of events with only tokens in one step."""
        run, data = TokenEvents(), b""
        # If an engine repeats the prompt, it does so at the beginning.
        prompt = None if sampled.fresh else attempt.prompt_json
        died: EngineError | None = None
        try:
            for data in events:
                if data == END:
                    break
                try:
                    piece = read(data if prompt is None else remove_echo(data, prompt))
                except EngineError as error:
                    died = error  # The tokens before the error are valid.
                    break
                if piece is not None and not run.takes(piece, data):
                    run.give_to(sampled, attempt.model)
                    sampled.take(self._without_base_versions(piece, attempt), model=attempt.model)
            run.give_to(sampled, attempt.model)
        except InvalidAnswer as error:
            raise self._bad(error, error.evidence or data) from error
        if died is not None:
            raise self._known_to_fit(self._bad(died, data), attempt) from died

    def _without_base_versions(self, piece: Piece, attempt: Request) -> Piece:
        """Removes the versions from a piece that an adapter sampled, because the engine reports the
        versions of the base weights there."""
        if attempt.model != self.model:
            piece.versions = None
        return piece

    def _bad(
        self, error: InvalidAnswer | EngineError, raw: bytes
    ) -> PolicyError | BadRequest | Truncated:
        if isinstance(error, EngineError):
            return self._status_error(error.status, sanitize(str(error)), {})
        evidence = redact(raw[: 2 * _EVIDENCE_CHARS].decode("utf-8", "replace"))[:_EVIDENCE_CHARS]
        return BadAnswer(f"the engine's answer cannot be used: {error}. It begins: {evidence}")

    @asynccontextmanager
    async def _post(self, attempt: Request) -> AsyncIterator[Response]:
        """Sends the request, and yields the response if its status is 200. Raises our errors for
        other statuses and failed connections."""
        try:
            session = await self._sessions.get()
            async with session.post(
                self._address(self.dialect.path),
                _encoder.encode(self.body(attempt)),
                request_id=header_text(attempt.id),
                timeout=self._timeouts[attempt.stream],
            ) as response:
                if response.status != 200:
                    raw = await read_body(response, _MAX_ERROR_BYTES)
                    raise self._known_to_fit(
                        self._response_error(response.status, response.headers, raw), attempt
                    )
                if self.record is not None:
                    await self._know_incarnation()
                yield response
        except aiohttp.ConnectionTimeoutError as error:
            raise EngineUnavailable(
                f"{self.name} took no connection within {CONNECT_SECONDS:g} s", reached=False
            ) from error
        except TimeoutError as error:
            raise EngineUnavailable(self._too_slow(stream=attempt.stream)) from error
        except (aiohttp.ClientConnectionError, OSError) as error:
            raise EngineUnavailable(
                f"connection to {self.name} lost: {describe_error(error)}", reached=False
            ) from error
        except aiohttp.ClientError as error:
            raise EngineUnavailable(f"{self.name}: {describe_error(error)}") from error

    def _known_to_fit(self, error: Exception, attempt: Request) -> Exception:
        """Returns `EngineUnavailable` in place of a refusal that a retry may avoid. A retry may
        avoid it if the request fits into the engine's context, or if the engine has lost an adapter
        in a restart. Returns other errors unchanged."""
        if attempt.adapter and isinstance(error, Denied) and error.status == 404:
            return EngineUnavailable(str(error), reached=False)
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

    def _response_error(
        self, status: int, headers: Mapping[str, str], body: bytes
    ) -> PolicyError | BadRequest | Truncated:
        return self._status_error(status, sanitize(_message(body)), headers)

    def _status_error(
        self, status: int, message: str, headers: Mapping[str, str]
    ) -> PolicyError | BadRequest | Truncated:
        """Returns our error for an error status of the engine."""
        message = self._without_address(message)
        where = f"{self.name} answered {status}: {message}"
        kind, has_key = self.dialect.kind, bool(self._api_key)
        if (denial := denial_of(status, where, dialect=kind, has_key=has_key)) is not None:
            return denial
        if status in (408, 409, 425, 429) or status >= 500:
            wait = retry_after({k.lower(): v for k, v in headers.items()}, now=self._clock.now())
            return EngineUnavailable(
                where,
                retry_after=wait,
                reached=status not in _OUTAGE_STATUSES,
                is_busy=status == 429,
            )
        if status in (400, 413, 422) and _TOO_LONG.search(message):
            return ContextOverflow(message)
        return BadRequest(where, answer=f"the engine answered {status}: {message}")

    def _without_address(self, message: str) -> str:
        """Removes the engine's address from a message, because the message may reach an agent."""
        address = urlsplit(self.url).netloc.rpartition("@")[2]
        return message.replace(self.name, _SELF).replace(address, _SELF)

    def _new_session(self) -> HttpSession:
        return HttpSession(self._headers(), on_connection=self._count_connection)

    def _headers(self) -> dict[str, str]:
        if not self._api_key:
            return {}
        own = {"Authorization": f"Bearer {self._api_key}"}
        if self.host == ANTHROPIC:
            # Anthropic's list of models needs this header instead of a bearer token.
            own |= {"x-api-key": self._api_key, "anthropic-version": "2023-06-01"}
        return own

    async def aclose(self) -> None:
        await self.breaker.aclose()
        await self._sessions.aclose()


def denial_of(status: int, message: str, *, dialect: Kind, has_key: bool) -> Denied | None:
    """Returns the refusal for a status that neither another request nor a retry can avoid, with a
    remedy for the key or the dialect. Returns None for other statuses."""
    if status in (404, 405):
        return Denied(f"{message} (asked in the dialect {dialect.value})", status)
    if status in (401, 403):
        return Denied(message, status, _KEY_REJECTED if has_key else _KEY_MISSING)
    return Denied(message, status) if 300 <= status < 400 else None


def _message(body: bytes) -> str:
    try:
        error = msgspec.json.decode(body)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (*UNREADABLE, KeyError, TypeError):
        return body[:_EVIDENCE_CHARS].decode("utf-8", "replace") or "(no body)"


def _check_key(api_key: str | None) -> str | None:
    if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
        raise UsageError("the API key holds a line break or another character that no key has")
    return api_key
