"""RemoteRolloutProcessor as evaluations have it: it also speaks eval-protocol's remote protocol.

    POST {remote_base_url}/init      InitRequest: messages, tools, ids, and where the model is
    POST {model_base_url}/logs       the server's log; a record with a final status ends the rollout
    GET  {remote_base_url}/status    asked as well, where the server has it

The gateway of the run stands for the tracing service: `model_base_url` and `api_key` of the request
are its own, so that every turn is recorded, and nothing is sampled twice. A server that has the
address of a tracing service in FW_TRACING_GATEWAY_BASE_URL is given the gateway's there.
"""

import asyncio
import os
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web
from pydantic import ValidationError

from holdfast.evaluation.exceptions import exception_for_status
from holdfast.evaluation.processors.remote_messages import (
    InitRequest,
    LogRecord,
    RolloutMetadata,
    StatusResponse,
)
from holdfast.evaluation.rows.convert import row_from
from holdfast.evaluation.rows.names import invocation_id
from holdfast.evaluation.rows.status import Status
from holdfast.gateway.address import LOOPBACK, Address
from holdfast.gateway.agents import remote
from holdfast.gateway.agents.gateway_processor import attempt_of
from holdfast.gateway.calls.trajectory import AgentTrajectory
from holdfast.gateway.http.request import RequestContext
from holdfast.gateway.protocol.messages import RequestRejected
from holdfast.gateway.server import Binding, Gateway
from holdfast.records.encoding.redaction import redact
from holdfast.records.errors import EnvironmentBroken, UsageError
from holdfast.rollout.context import Rollout
from holdfast.rollout.processors.processor import Returned, completion_params_of

HOSTED = "https://tracing.fireworks.ai"
"""What eval-protocol asks by default; its place is taken by the run's gateway."""
INIT_SECONDS = 600.0
REMOTE_BASE_URL, MODEL_BASE_URL = "EP_REMOTE_ROLLOUT_PROCESSOR_BASE_URL", "EP_MODEL_BASE_URL"


class RemoteRolloutProcessor(remote.RemoteRolloutProcessor):
    """With `url`, a service that speaks Holdfast's protocol; with `remote_base_url`, one that
    speaks eval-protocol's, whose arguments are the next four."""

    def __init__(
        self,
        url: str | None = None,
        *,
        remote_base_url: str | None = None,
        model_base_url: str | None = None,
        poll_interval: float = 1.0,
        timeout_seconds: float = 120.0,
        include_payloads: bool = False,
        **options: Any,
    ):
        """`model_base_url`: `http://127.0.0.1:PORT`, where the gateway is to listen, for servers
        that know its address beforehand; by default at a free port. `include_payloads` changes
        nothing: token data is always recorded. `options` are those of Holdfast's protocol."""
        theirs = remote_base_url if url else os.environ.get(REMOTE_BASE_URL) or remote_base_url
        if (url is None) == (theirs is None):
            raise UsageError(
                "RemoteRolloutProcessor wants a url, of a service that speaks Holdfast's protocol, "
                "or a remote_base_url, of one that speaks eval-protocol's"
            )
        at = os.environ.get(MODEL_BASE_URL) or model_base_url
        if theirs is not None:
            options.setdefault("address", _listening(at))
        super().__init__(url or str(theirs), **options)
        self._is_theirs = theirs is not None
        self._poll_interval = poll_interval
        self._timeout_seconds = timeout_seconds
        self._waiting: dict[str, asyncio.Future[Status]] = {}

    def make_gateway(self) -> Gateway:
        if not self._is_theirs:
            return super().make_gateway()
        return self._make_gateway(endpoints=dict.fromkeys(("/logs", "/v1/logs"), self._log))

    async def run_agent(
        self, t: Rollout, binding: Binding, trajectory: AgentTrajectory
    ) -> Returned:
        if not self._is_theirs:
            return await super().run_agent(t, binding, trajectory)
        asked = _init_request(t, binding)
        name = asked.metadata.rollout_id
        self._waiting[name] = ended = asyncio.get_running_loop().create_future()
        polling = asyncio.create_task(self._polled(name, ended), name=f"status of {name}")
        try:
            async with asyncio.timeout(INIT_SECONDS):
                await self._begin(asked, ended)
            async with asyncio.timeout(self._timeout_seconds):
                status = await ended
        except TimeoutError:
            raise EnvironmentBroken(
                f"{self._url} did not end the rollout within {self._timeout_seconds:g} s: it logs "
                f"a final status to {binding.url}/logs, or tells it at /status"
            ) from None
        finally:
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)
            del self._waiting[name]
        if (error := exception_for_status(status)) is not None:
            raise error
        return None

    async def _begin(self, asked: InitRequest, ended: "asyncio.Future[Status]") -> None:
        body = asked.model_dump(mode="json", exclude_none=True)
        assert self._http is not None, "a processor is set up first"
        timeout = aiohttp.ClientTimeout(total=INIT_SECONDS)
        try:
            async with self._http.post(f"{self._url}/init", json=body, timeout=timeout) as response:
                told = (await response.read())[:300].decode("utf-8", "replace")
        except aiohttp.ClientError as error:
            words = f"{self._url} cannot be reached: {error}"
            raise EnvironmentBroken(redact(words)) from error
        # What it logged before it answered counts.
        if response.status >= 400 and not ended.done():
            raise EnvironmentBroken(
                redact(f"{self._url}: POST /init was answered with {response.status}: {told}")
            )

    async def _log(self, visit: RequestContext) -> web.StreamResponse:
        """`POST /logs`: anything that is no final status of a rollout that goes on is let pass."""
        try:
            record = LogRecord.model_validate_json(await visit.body())
        except ValidationError as error:
            raise RequestRejected(
                400, f"a log record is an object: {error.errors()[0]['msg']}"
            ) from error
        for name in record.rollouts:
            self._note(name, record.status)
        return await visit.response.send(b"{}")

    def _note(self, rollout: str, status: Status | None) -> None:
        ended = self._waiting.get(rollout)
        if status is None or status.is_running() or ended is None or ended.done():
            return
        ended.set_result(status)

    async def _polled(self, name: str, ended: "asyncio.Future[Status]") -> None:
        """A server that has no /status, or none that can be read, is not asked again."""
        assert self._http is not None, "a processor is set up first"
        while not ended.done():
            await asyncio.sleep(self._poll_interval)
            try:
                async with self._http.get(
                    f"{self._url}/status", params={"rollout_id": name}
                ) as response:
                    if response.status != 200:
                        return
                    told = StatusResponse.model_validate_json(await response.read())
            except aiohttp.ClientError:
                continue  # It may come back; the deadline decides.
            except ValidationError:
                return
            if told.terminated:
                self._note(name, told.status or Status.rollout_finished())


def _init_request(t: Rollout, binding: Binding) -> InitRequest:
    row = row_from(t.task)
    session = t.session
    params = completion_params_of(session.speaker.policy.model, session.context.spec.sampling)
    # Of this attempt alone: what an earlier one logs late is nobody's.
    name = f"{t.key.run}.{t.key.task}.{t.key.sample}.{attempt_of(t)}".replace("/", "_")
    return InitRequest(
        completion_params={**row.input_metadata.completion_params, **params},
        messages=[message.dump_for_chat_completion_request() for message in row.messages],  # type: ignore[misc]
        tools=row.tools,
        model_base_url=f"{binding.bound_url}/v1",
        metadata=RolloutMetadata(
            invocation_id=invocation_id() or t.key.run,
            experiment_id=t.key.run,
            rollout_id=name,
            run_id=t.key.run,
            row_id=t.key.task,
        ),
        api_key=binding.key,
    )


def _listening(model_base_url: str | None) -> Address:
    if model_base_url is None or model_base_url.rstrip("/") == HOSTED:
        return LOOPBACK
    parts = urlsplit(model_base_url)
    if parts.scheme != "http" or not parts.hostname or parts.port is None:
        raise UsageError(
            f"model_base_url={model_base_url!r}: the run's own gateway serves the model, and "
            "listens at http://HOST:PORT of this machine; leave it out, and a free port is found"
        )
    return Address(host=parts.hostname, port=parts.port)
