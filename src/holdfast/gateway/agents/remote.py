"""RemoteRolloutProcessor runs an agent that is a service somewhere else.

The service is asked to start a run and is polled until the run is done. If the attempt ends before
that, the service is asked to stop. The agent uses the gateway like any agent. Its reports are
matched by trajectory and attempt, so a report about another attempt is never taken for one about
this attempt.

    POST   {url}/runs        {"trajectory", "attempt", "task", "model", "url", "key"} → {"id"}
    GET    {url}/runs/{id}   → {"status", "trajectory", "attempt", "reward"?, "turns"?, "error"?}
    DELETE {url}/runs/{id}   stops the run; repeating it changes nothing

`status` is `running`, `completed`, `failed` or `cancelled`.
"""

import asyncio
import logging
import random
from collections.abc import Mapping
from typing import Literal, TypeVar, Unpack

import aiohttp
import msgspec
from msgspec import Struct

from holdfast.gateway.address import LOOPBACK, Address
from holdfast.gateway.agents.gateway_processor import (
    GatewayOptions,
    GatewayRolloutProcessor,
)
from holdfast.gateway.calls.attempt_status import attempt_number
from holdfast.gateway.calls.trajectory import AgentTrajectory
from holdfast.gateway.protocol.messages import AgentFailed
from holdfast.gateway.server import Binding
from holdfast.records.encoding.declared import checks_arguments
from holdfast.records.encoding.redaction import hide, hide_credentials, redact
from holdfast.records.errors import EnvironmentBroken, UsageError
from holdfast.rollout.context import Rollout
from holdfast.rollout.processors.processor import Returned

_log = logging.getLogger("holdfast.gateway")
T = TypeVar("T")
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0
CALL_SECONDS = 30.0
STOP_SECONDS = 10.0


class _Started(Struct):
    id: str


class _Report(Struct):
    status: Literal["running", "completed", "failed", "cancelled"]
    trajectory: str
    attempt: int
    reward: float | None = None
    turns: int | None = None
    error: str = ""


_EXPECTED_BODIES: dict[type, str] = {
    _Started: '{"id": "…"}',
    _Report: '{"status": "running", "completed", "failed" or "cancelled", "trajectory": "…", '
    '"attempt": 1}',
}
"""The answer that a service should have sent, for error messages."""


class RemoteRolloutProcessor(GatewayRolloutProcessor):
    """Starts one run of the service for each attempt."""

    address_source = "`url` and `key` of POST /runs"

    @checks_arguments()
    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        patience: float = 60.0,
        address: Address = LOOPBACK,
        **options: Unpack[GatewayOptions],
    ):
        """`patience` is the number of seconds for which the service may be out of reach. `address`
        is the gateway's address, by default a free port of this machine."""
        super().__init__(address, **options)
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"{url!r} is not an address: it has to begin with http:// or https://")
        self._url = url.rstrip("/")
        hide_credentials(url)
        self._headers = dict(headers or {})
        for value in self._headers.values():
            hide(value)
        self._patience = patience
        self._http: aiohttp.ClientSession | None = None

    @property
    def identity(self) -> str:
        return self._url + self.surroundings

    async def setup(self) -> None:
        await super().setup()
        timeout = aiohttp.ClientTimeout(total=CALL_SECONDS)
        self._http = aiohttp.ClientSession(headers=self._headers, timeout=timeout)

    async def acleanup(self) -> None:
        if self._http is not None:
            await self._http.close()
        await super().acleanup()

    async def run_agent(
        self, t: Rollout, binding: Binding, trajectory: AgentTrajectory
    ) -> Returned:
        body = {
            "trajectory": str(t.key),
            "attempt": attempt_number(t.session),
            "task": msgspec.to_builtins(t.task),
            "model": t.speaker.policy.model,
            "url": binding.bound_url,
            "key": binding.key,
        }
        started = await self._call("POST", "/runs", body, _Started)
        try:
            return await self._follow(f"/runs/{started.id}", t)
        except BaseException:
            await self._stop(f"/runs/{started.id}")
            raise

    async def _follow(self, run: str, t: Rollout) -> Returned:
        pause = FIRST_PAUSE
        while True:
            report = await self._call("GET", run, None, _Report)
            if (report.trajectory, report.attempt) != (str(t.key), attempt_number(t.session)):
                raise EnvironmentBroken(
                    f"{self._url} reports about {report.trajectory}, attempt {report.attempt}, "
                    f"when asked about {t.key}, attempt {attempt_number(t.session)}"
                )
            if report.status == "completed":
                return report.reward if report.turns is None else (report.turns, report.reward)
            if report.status != "running":
                raise AgentFailed(f"the remote agent {report.status}: {redact(report.error)}")
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(LONGEST_PAUSE, 1.5 * pause)

    async def _call(self, method: str, path: str, body: object, kind: type[T]) -> T:
        """Calls the service, and retries while it is out of reach. Starting a run is safe to
        repeat, because the request names the trajectory and the attempt."""
        deadline = asyncio.get_running_loop().time() + self._patience
        pause = FIRST_PAUSE
        while True:
            try:
                return await self._once(method, path, body, kind)
            except (aiohttp.ClientError, TimeoutError) as error:
                if asyncio.get_running_loop().time() + pause > deadline:
                    message = f"{self._url} was out of reach for {self._patience:g} s: {error}"
                    raise EnvironmentBroken(redact(message)) from error
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(LONGEST_PAUSE, 2 * pause)

    async def _once(self, method: str, path: str, body: object, kind: type[T]) -> T:
        assert self._http is not None, "a processor is set up first"
        # Without the id of the run, so that equal failures are counted together.
        request = f"{method} /runs" if path == "/runs" else f"{method} /runs/ID"
        async with self._http.request(method, f"{self._url}{path}", json=body) as response:
            raw = await response.read()
            if response.status >= 500 or response.status == 429:
                raise aiohttp.ClientError(f"{request} was answered with {response.status}")
            if response.status >= 400:
                text = redact(raw.decode("utf-8", "replace"))[:300]
                raise EnvironmentBroken(
                    redact(f"{self._url}: {request} was refused ({response.status}): {text}")
                )
        try:
            return msgspec.json.decode(raw, type=kind)
        except ValueError as error:
            raise EnvironmentBroken(
                f"{self._url}: the answer to {request} has to be {_EXPECTED_BODIES[kind]}: {error}"
            ) from error

    async def _stop(self, run: str) -> None:
        """Asks the service to stop a run whose attempt has ended. Takes a few seconds at most."""
        assert self._http is not None, "a processor is set up first"
        try:
            async with asyncio.timeout(STOP_SECONDS):
                async with self._http.delete(f"{self._url}{run}") as response:
                    await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            _log.warning("a remote agent could not be stopped: %s", redact(str(error)))
