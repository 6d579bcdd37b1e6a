"""RemoteRolloutProcessor for evaluations. It also speaks eval-protocol's remote protocol.

    POST {remote_base_url}/init      InitRequest: messages, tools, ids, and the model's address
    POST {model_base_url}/logs       the server's log; a record with a final status ends the rollout
    GET  {remote_base_url}/status    polled too, if the server has it

The run's gateway replaces the tracing service: `model_base_url` and `api_key` of the request are
the gateway's, so that every turn is recorded and nothing is sampled twice. A server that reads the
tracing service's address from FW_TRACING_GATEWAY_BASE_URL needs the gateway's address there.
"""

import asyncio
import hashlib
import os
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web
from pydantic import ValidationError

from holdfast.evaluation.eval_protocol.remote_messages import (
    InitRequest,
    LogRecord,
    RolloutMetadata,
    StatusResponse,
)
from holdfast.evaluation.exceptions import exception_for_status
from holdfast.evaluation.rows.convert import row_from
from holdfast.evaluation.rows.names import invocation_id
from holdfast.evaluation.rows.status import Status
from holdfast.gateway.address import LOOPBACK, Address
from holdfast.gateway.agents import remote
from holdfast.gateway.calls.attempt_status import attempt_number
from holdfast.gateway.calls.trajectory import AgentTrajectory
from holdfast.gateway.http.request import RequestContext
from holdfast.gateway.protocol.messages import RequestRejected
from holdfast.gateway.server import Binding, Gateway
from holdfast.records.encoding.redaction import redact
from holdfast.records.errors import EnvironmentBroken, UsageError
from holdfast.rollout.context import Rollout
from holdfast.rollout.processors.processor import Returned, completion_params_of
from holdfast.rollout.threads.contain import in_background

HOSTED_TRACING_URL = "https://tracing.fireworks.ai"
"""eval-protocol's default address, which is replaced by the run's gateway."""
INIT_SECONDS = 600.0
REMOTE_BASE_URL, MODEL_BASE_URL = "EP_REMOTE_ROLLOUT_PROCESSOR_BASE_URL", "EP_MODEL_BASE_URL"


class RemoteRolloutProcessor(remote.RemoteRolloutProcessor):
    """Rolls out rows at a service. With `url`, the service speaks Holdfast's protocol. With
    `remote_base_url`, the service speaks eval-protocol's protocol, and the next four arguments
    apply."""

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
        """`model_base_url` is the gateway's address (`http://127.0.0.1:PORT`), for servers that
        need a fixed one; the default is a free port. `include_payloads` has no effect, because
        token data is always recorded. `options` are the options for Holdfast's protocol."""
        service_url = remote_base_url if url else os.environ.get(REMOTE_BASE_URL) or remote_base_url
        if (url is None) == (service_url is None):
            raise UsageError(
                "RemoteRolloutProcessor wants a url, of a service that speaks Holdfast's protocol, "
                "or a remote_base_url, of one that speaks eval-protocol's"
            )
        model_url = os.environ.get(MODEL_BASE_URL) or model_base_url
        if service_url is not None:
            options.setdefault("address", _gateway_address(model_url))
        super().__init__(url or str(service_url), **options)
        self._is_eval_protocol = service_url is not None
        self._poll_interval = poll_interval
        self._timeout_seconds = timeout_seconds
        self._waiting: dict[str, asyncio.Future[Status]] = {}

    def make_gateway(self) -> Gateway:
        if not self._is_eval_protocol:
            return super().make_gateway()
        return self._make_gateway(
            open_endpoints=dict.fromkeys(("/logs", "/v1/logs"), self._handle_log)
        )

    async def run_agent(
        self, t: Rollout, binding: Binding, trajectory: AgentTrajectory
    ) -> Returned:
        if not self._is_eval_protocol:
            return await super().run_agent(t, binding, trajectory)
        request = _init_request(t, binding)
        name = request.metadata.rollout_id
        self._waiting[name] = ended = asyncio.get_running_loop().create_future()
        try:
            async with in_background(self._poll_status(name, ended), name=f"status of {name}"):
                async with asyncio.timeout(INIT_SECONDS):
                    await self._post_init(request, ended)
                async with asyncio.timeout(self._timeout_seconds):
                    status = await ended
        except TimeoutError:
            raise EnvironmentBroken(
                f"{self._url} did not end the rollout within {self._timeout_seconds:g} s: it logs "
                f"a final status to {binding.url}/logs, or returns it at /status"
            ) from None
        finally:
            del self._waiting[name]
        if (error := exception_for_status(status)) is not None:
            raise error
        return None

    async def _post_init(self, request: InitRequest, ended: "asyncio.Future[Status]") -> None:
        body = request.model_dump(mode="json", exclude_none=True)
        assert self._http is not None, "a processor is set up first"
        timeout = aiohttp.ClientTimeout(total=INIT_SECONDS)
        try:
            async with self._http.post(f"{self._url}/init", json=body, timeout=timeout) as response:
                text = (await response.read())[:300].decode("utf-8", "replace")
        except aiohttp.ClientError as error:
            message = f"{self._url} cannot be reached: {error}"
            raise EnvironmentBroken(redact(message)) from error
        # A final status that the server logged before this response counts.
        if response.status >= 400 and not ended.done():
            raise EnvironmentBroken(
                redact(f"{self._url}: POST /init was answered with {response.status}: {text}")
            )

    async def _handle_log(self, request: RequestContext) -> web.StreamResponse:
        """Handles `POST /logs`: keeps the final status of a running rollout, and ignores other
        records."""
        try:
            record = LogRecord.model_validate_json(await request.body())
        except ValidationError as error:
            raise RequestRejected(
                400, f"a log record is an object: {error.errors()[0]['msg']}"
            ) from error
        for name in record.rollouts:
            self._set_status(name, record.status)
        return await request.send(b"{}")

    def _set_status(self, rollout: str, status: Status | None) -> None:
        ended = self._waiting.get(rollout)
        if status is None or status.is_running() or ended is None or ended.done():
            return
        ended.set_result(status)

    async def _poll_status(self, name: str, ended: "asyncio.Future[Status]") -> None:
        """Polls the status of a rollout until the rollout ends. If a response is not a status, the
        server has no /status, so polling stops."""
        assert self._http is not None, "a processor is set up first"
        while not ended.done():
            await asyncio.sleep(self._poll_interval)
            try:
                async with self._http.get(
                    f"{self._url}/status", params={"rollout_id": name}
                ) as response:
                    if response.status != 200:
                        return
                    answer = StatusResponse.model_validate_json(await response.read())
            except aiohttp.ClientError:
                continue  # The server may come back. The deadline decides.
            except ValidationError:
                return
            if answer.terminated:
                self._set_status(name, answer.status or Status.rollout_finished())


def _init_request(t: Rollout, binding: Binding) -> InitRequest:
    row = row_from(t.task)
    session = t.session
    params = completion_params_of(session.speaker.policy.model, session.context.spec.sampling)
    # Each attempt has its own secret, so late logs of an earlier attempt have no effect, and only
    # the server of this attempt knows it.
    secret = hashlib.sha256(binding.key.encode()).hexdigest()[:16]
    name = f"{t.key.run}.{t.key.task}.{t.key.sample}.{attempt_number(t.session)}.{secret}".replace(
        "/", "_"
    )
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


def _gateway_address(model_base_url: str | None) -> Address:
    if model_base_url is None or model_base_url.rstrip("/") == HOSTED_TRACING_URL:
        return LOOPBACK
    parts = urlsplit(model_base_url)
    if parts.scheme != "http" or not parts.hostname or parts.port is None:
        raise UsageError(
            f"model_base_url={model_base_url!r}: the run's own gateway serves the model, and "
            "listens at http://HOST:PORT of this machine; without it, a free port is used"
        )
    return Address(host=parts.hostname, port=parts.port)
