"""The token-in token-out client for `/v1/completions`, as vLLM speaks it.

Every retry of a single call happens here, under one budget and one deadline; an outage makes calls
wait at the gate instead of failing them. Rollouts never see a transient error.
"""

import asyncio
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

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
from holdfast.records.failure import redact

CONNECT_SECONDS = 10.0
PROBE_SECONDS = 5.0
_OUTAGE_STATUSES = frozenset({502, 503, 504})
_TOO_LONG = re.compile(r"(?i)maximum context length|context.?length|too long|max_model_len")
_UNREACHABLE = (TimeoutError, aiohttp.ClientError, HoldfastError, msgspec.MsgspecError)
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
        self._api_key = api_key
        self._retry = retry or RetryPolicy()
        self._connections = connections
        self._clock = clock or SystemClock()
        self._session: aiohttp.ClientSession | None = None
        self.gate = Gate(self.url, self._probe, clock=self._clock, patience=patience)

    # --- before the work

    async def check(self) -> None:
        try:
            served = await self._models()
        except _UNREACHABLE as error:
            raise EndpointDown(
                f"the policy at {self.url} does not answer ({_say(error)}); start it, or correct "
                "--policy"
            ) from error
        if self.model not in served:
            raise PolicyRefused(
                f"{self.url} does not serve model {self.model!r}; it serves: "
                f"{', '.join(served) or 'none'}"
            )

    async def ready(self) -> None:
        await self.gate.passed()

    @property
    def seconds_down(self) -> float:
        return self.gate.seconds_down

    async def _models(self) -> list[str]:
        timeout = aiohttp.ClientTimeout(total=PROBE_SECONDS)
        async with self._client().get(f"{self.url}/v1/models", timeout=timeout) as response:
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
        started = self._clock.elapsed()
        body = _encoder.encode(self._body(request))
        failures = 0
        while True:
            outages = self.gate.outages
            await self.gate.passed()
            try:
                raw = await self._post(body, request)
                completion = answer.read(
                    raw,
                    request,
                    model=self.model,
                    tries=failures + 1,
                    seconds=self._clock.elapsed() - started,
                )
            except PolicyError as error:
                if not error.retryable:
                    raise
                failures += 1
                left = self._retry.deadline - (self._clock.elapsed() - started)
                if await self._waited_out(error, failures, left, outages):
                    # An outage is the endpoint's failure, not this call's.
                    failures -= 1
            else:
                self.gate.succeeded()
                return completion

    async def _waited_out(
        self, error: PolicyError, failures: int, left: float, outages: int
    ) -> bool:
        """Waits until trying again makes sense, or raises `error`. True after an outage."""
        if isinstance(error, EngineUnavailable) and not error.connected:
            self.gate.failed()
        if not self.gate.is_open:
            await self.gate.passed()
            if self.gate.outages != outages:
                return True
        if failures >= self._retry.tries or left <= 0:
            raise error
        asked = error.retry_after if isinstance(error, EngineUnavailable) else None
        delay = self._retry.delay(failures, retry_after=asked)
        if delay > left:
            raise EngineUnavailable(
                f"{error} — it asks to wait {delay:.0f} s, more than the {left:.0f} s that are left"
            ) from error
        if not self.gate.budget.spend():
            self.gate.shut()
        await self._clock.sleep(delay)
        return False

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
        headers = {"Content-Type": "application/json", "X-Request-Id": request.id}
        try:
            async with self._client().post(
                f"{self.url}/v1/completions", data=body, headers=headers
            ) as response:
                raw = await response.read()
                if response.status == 200:
                    return raw
                raise self._refusal(response.status, response.headers, raw)
        except TimeoutError as error:
            raise EngineUnavailable(
                f"{self.url} did not answer within {self._retry.try_timeout:g} s"
            ) from error
        except aiohttp.ClientConnectionError as error:
            raise EngineUnavailable(
                f"connection to {self.url} lost: {_say(error)}", connected=False
            ) from error
        except aiohttp.ClientError as error:
            raise EngineUnavailable(f"{self.url}: {_say(error)}") from error

    def _refusal(
        self, status: int, headers: Mapping[str, str], body: bytes
    ) -> PolicyError | BadRequest | ContextOverflow:
        """An error status as one of our errors: the only place that reads status codes."""
        said = redact(_message(body))
        where = f"{self.url} answered {status}: {said}"
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
            headers = {"Authorization": f"Bearer {self._api_key}"} if self._api_key else {}
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._connections),
                timeout=aiohttp.ClientTimeout(
                    total=self._retry.try_timeout, sock_connect=CONNECT_SECONDS
                ),
                headers=headers,
            )
        return self._session

    async def aclose(self) -> None:
        await self.gate.aclose()
        if self._session is not None:
            await self._session.close()
            # aiohttp closes its transports in the next turn of the loop.
            await asyncio.sleep(0)


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def base_url(url: str) -> str:
    """`http://host:port`, with or without a trailing `/v1`."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UsageError(f"--policy wants an address like http://127.0.0.1:8000, not {url!r}")
    return url.rstrip("/").removesuffix("/v1")


def _message(body: bytes) -> str:
    try:
        error = msgspec.json.decode(body)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (msgspec.MsgspecError, KeyError, TypeError):
        return body[:300].decode("utf-8", "replace") or "(no body)"


def _say(error: BaseException) -> str:
    return redact(str(error)) or type(error).__name__
