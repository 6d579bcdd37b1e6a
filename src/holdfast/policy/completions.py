"""The token-in token-out client for `/v1/completions`, as vLLM speaks it.

Every retry of a single call happens here, under one budget and one deadline; an outage makes calls
wait at the gate instead of failing them. Rollouts never see a transient error.
"""

import asyncio
import re
from collections.abc import Mapping
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec

from holdfast.clock import Clock, SystemClock
from holdfast.policy import answer
from holdfast.policy.gate import Gate
from holdfast.policy.policy import Completion, Request
from holdfast.policy.retry import RetryPolicy, retry_after
from holdfast.records.errors import (
    BadRequest,
    ContextOverflow,
    EndpointDown,
    EngineUnavailable,
    HoldfastError,
    PolicyError,
    PolicyRefused,
    UsageError,
)
from holdfast.records.redaction import hide, redact

CONNECT_SECONDS = 10.0
PROBE_SECONDS = 5.0
_OUTAGE_STATUSES = frozenset({502, 503, 504})
_TOO_LONG = re.compile(r"(?i)maximum context length|context.?length|too long|max_model_len")
_UNREACHABLE = (OSError, aiohttp.ClientError, HoldfastError, *answer.UNREADABLE)
_MAX_SAID = 1_000
_MAX_ID = 512
_encoder = msgspec.json.Encoder()


class CompletionsPolicy:
    """One endpoint and one model. Safe to share by any number of trajectories of one loop."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        api_key: str | None = None,
        retry: RetryPolicy | None = None,
        patience: float = 900.0,
        connections: int = 1024,
        clock: Clock | None = None,
    ):
        self.url = base_url(url)
        self.model = model
        self._api_key = _checked(api_key)
        hide(api_key)
        self._retry = retry or RetryPolicy()
        self._connections = connections
        self._clock = clock or SystemClock()
        self._session: aiohttp.ClientSession | None = None
        self._name = redact(self.url)
        self.gate = Gate(self._name, self._probe, clock=self._clock, patience=patience)

    # --- before the work

    async def check(self) -> None:
        try:
            served = await self._models()
        except PolicyRefused as error:
            raise PolicyRefused(
                f"{error} — it may be no inference engine, or want a key; check the address"
            ) from error
        except _UNREACHABLE as error:
            raise EndpointDown(
                f"the policy at {self._name} does not answer ({_say(error)}); start it, or "
                "correct --policy"
            ) from error
        if self.model not in served:
            raise PolicyRefused(
                f"{self._name} does not serve model {self.model!r}; it serves: "
                f"{', '.join(served) or 'none'}"
            )

    async def ready(self) -> None:
        await self.gate.passed()

    @property
    def seconds_down(self) -> float:
        return self.gate.seconds_down

    async def _models(self) -> list[str]:
        # Not through the pool: a probe that queues behind running calls would report an outage.
        async with (
            aiohttp.ClientSession(
                headers=self._headers(), timeout=aiohttp.ClientTimeout(total=PROBE_SECONDS)
            ) as session,
            session.get(f"{self.url}/v1/models") as response,
        ):
            body = await response.read()
            if response.status != 200:
                raise self._refusal(response.status, response.headers, body)
            return [entry.id for entry in msgspec.json.decode(body, type=_Models).data]

    async def _probe(self) -> str | None:
        try:
            served = await self._models()
        except _UNREACHABLE as error:
            return _say(error)
        return None if self.model in served else f"it no longer serves {self.model!r}"

    # --- the work

    async def sample(self, request: Request) -> Completion:
        call = _Call(started=self._clock.elapsed(), down=self.gate.seconds_down)
        body = _encoder.encode(self._body(request))
        while True:
            await self.gate.passed()
            call.tries += 1
            call.outages_before = self.gate.outages
            try:
                raw = await self._post(body, request)
                completion = answer.read(
                    raw,
                    request,
                    model=self.model,
                    tries=call.tries,
                    seconds=self._clock.elapsed() - call.started,
                )
            except PolicyError as error:
                if not error.retryable:
                    raise
                await self._recover(call, error)
            else:
                self.gate.succeeded()
                return completion

    async def _recover(self, call: "_Call", error: PolicyError) -> None:
        """Returns when trying again makes sense, or raises `error`."""
        call.failures += 1
        if await self._was_outage(call, error):
            # The endpoint's failure, not this call's: unless this call is what brings it down.
            call.outages += 1
            call.failures = 0
            if call.outages > self._retry.tries:
                raise error
            return
        down = self.gate.seconds_down - call.down
        left = self._retry.deadline - (self._clock.elapsed() - call.started - down)
        if call.failures >= self._retry.tries or left <= 0:
            raise error
        await self._pause(error, call.failures, left)

    async def _was_outage(self, call: "_Call", error: PolicyError) -> bool:
        """Whether the endpoint was down since this try began; waits at the gate while it is."""
        if isinstance(error, EngineUnavailable) and not error.connected:
            self.gate.failed()
            if call.failures >= self._retry.tries:
                # Ask before giving up: a lone call never fails often enough to shut the gate.
                self.gate.shut()
        await self.gate.passed()
        return self.gate.outages != call.outages_before

    async def _pause(self, error: PolicyError, failures: int, left: float) -> None:
        asked = error.retry_after if isinstance(error, EngineUnavailable) else None
        delay = self._retry.delay(failures, retry_after=asked)
        if delay > left:
            raise EngineUnavailable(
                f"{error} — it asks to wait {delay:.0f} s, more than the {left:.0f} s that are left"
            ) from error
        self.gate.spend_retry()
        await self._clock.sleep(delay)

    def _body(self, request: Request) -> dict[str, object]:
        sampling = request.sampling
        body: dict[str, object] = {
            "model": self.model,
            "prompt": request.prompt.tolist(),
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "logprobs": 0,
            "return_token_ids": True,
        }
        if sampling.top_p != 1.0:
            body["top_p"] = sampling.top_p
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if request.stop_token_ids:
            body["stop_token_ids"] = list(request.stop_token_ids)
        if request.seed is not None:
            body["seed"] = request.seed
        return body

    async def _post(self, body: bytes, request: Request) -> bytes:
        headers = {"Content-Type": "application/json", "X-Request-Id": _header(request.id)}
        try:
            async with self._client().post(
                f"{self.url}/v1/completions", data=body, headers=headers
            ) as response:
                raw = await response.read()
                if response.status == 200:
                    return raw
                raise self._refusal(response.status, response.headers, raw)
        except aiohttp.ConnectionTimeoutError as error:
            raise EngineUnavailable(
                f"{self._name} took no connection within {CONNECT_SECONDS:g} s", connected=False
            ) from error
        except TimeoutError as error:
            raise EngineUnavailable(
                f"{self._name} did not answer within {self._retry.try_timeout:g} s"
            ) from error
        except (aiohttp.ClientConnectionError, OSError) as error:
            raise EngineUnavailable(
                f"connection to {self._name} lost: {_say(error)}", connected=False
            ) from error
        except aiohttp.ClientError as error:
            raise EngineUnavailable(f"{self._name}: {_say(error)}") from error

    def _refusal(
        self, status: int, headers: Mapping[str, str], body: bytes
    ) -> PolicyError | BadRequest | ContextOverflow:
        """An error status as one of our errors: the only place that reads status codes."""
        said = redact(_message(body))[:_MAX_SAID]
        where = f"{self._name} answered {status}: {said}"
        if status in (401, 403, 404):
            return PolicyRefused(where)
        if status in (408, 409, 425, 429) or status >= 500:
            wait = retry_after({k.lower(): v for k, v in headers.items()}, now=self._clock.now())
            return EngineUnavailable(
                where, retry_after=wait, connected=status not in _OUTAGE_STATUSES
            )
        if status in (400, 413, 422) and _TOO_LONG.search(said):
            return ContextOverflow(said)
        return BadRequest(where)

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._connections),
                timeout=aiohttp.ClientTimeout(
                    total=self._retry.try_timeout, sock_connect=CONNECT_SECONDS
                ),
                headers=self._headers(),
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


class _Call(msgspec.Struct):
    """How one call is doing."""

    started: float
    down: float
    """The endpoint's seconds of outage when the call began."""
    tries: int = 0
    failures: int = 0
    """Since the last outage."""
    outages: int = 0
    outages_before: int = 0
    """Outages of the endpoint when the present try began."""


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def base_url(url: str) -> str:
    """`http://host:port`, with or without a trailing `/v1`."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.netloc) and parts.port != 0
    except ValueError:  # A port or an IPv6 address that is none.
        usable = False
    if not usable:
        raise UsageError(
            "an inference engine's address (--policy) looks like http://127.0.0.1:8000, not "
            f"{redact(url)!r}"
        )
    return url.rstrip("/").removesuffix("/v1")


def _message(body: bytes) -> str:
    try:
        error = msgspec.json.decode(body)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (*answer.UNREADABLE, KeyError, TypeError):
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


def _say(error: BaseException) -> str:
    return redact(str(error)) or type(error).__name__
