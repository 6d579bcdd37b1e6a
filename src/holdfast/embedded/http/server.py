"""The HTTP side: OpenAI-compatible, as vLLM answers, over one engine.

Every request that was begun is either answered or cancelled: a client that goes away frees its
places in the batch before the next step.
"""

import asyncio
import hmac
import time
import uuid
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from holdfast.embedded.http import chat_prompt, errors, metrics, parse_request
from holdfast.embedded.http.chat_response import ChatShape
from holdfast.embedded.http.completions_response import CompletionsShape, GenerateShape
from holdfast.embedded.http.errors import EngineRequestRejected
from holdfast.embedded.http.parse_fields import FieldReader
from holdfast.embedded.http.parse_request import ParsedRequest
from holdfast.embedded.http.request_state import RequestState, ResponseShape
from holdfast.embedded.http.token_queue import Letters, Mail
from holdfast.embedded.http.weight_routes import Control
from holdfast.embedded.scheduler.engine import DecodeEngine, EngineStopped, QueueFull
from holdfast.embedded.scheduler.generation import Finish
from holdfast.policy.off_loop import off_loop

MAX_BODY = 64 << 20
_OPEN_PATHS = ("/health",)
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_encode = msgspec.json.encode


class Server:
    """One engine behind HTTP. `application` is to be run in the event loop that made it."""

    def __init__(
        self,
        engine: DecodeEngine,
        *,
        served: str,
        api_key: str | None = None,
        log: Callable[[str], object] | None = None,
    ):
        """`log` is called with the id of each request that is taken."""
        self._engine = engine
        self._log = log
        self._served = served
        self._api_key = api_key
        self._mail = Mail(asyncio.get_running_loop())
        self._created = int(time.time())

    def application(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY, middlewares=[self._guard])
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/inference/v1/generate", self._generate)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        Control(self._engine).add_to(app.router)
        return app

    # --- generating

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        asked = await self._asked(request, parse_request.completions)
        return await self._answer(request, asked, CompletionsShape, "cmpl")

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        asked = await self._asked(request, chat_prompt.chat)
        return await self._answer(request, asked, ChatShape, "chatcmpl")

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        asked = await self._asked(request, parse_request.generate)
        return await self._answer(request, asked, GenerateShape, "generate-tokens")

    async def _asked(
        self, request: web.Request, read: Callable[..., ParsedRequest]
    ) -> ParsedRequest:
        """What a request wants, its prompt as ids; a large one is read in a thread."""
        raw = await request.read()

        def parsed() -> ParsedRequest:
            return read(FieldReader.parsed(raw), self._engine.model, served=self._served)

        return await off_loop(parsed, size=len(raw))

    async def _answer(
        self,
        request: web.Request,
        asked: ParsedRequest,
        shaped: Callable[[RequestState], ResponseShape],
        prefix: str,
    ) -> web.StreamResponse:
        given = request.headers.get("X-Request-Id") or uuid.uuid4().hex[:16]
        if self._log is not None:
            self._log(given)
        job = RequestState(
            asked, self._engine.model, served=self._served, request_id=f"{prefix}-{given}"
        )
        letters = Letters(request)
        sinks = [self._mail.sink(letters, choice) for choice in range(job.choices)]
        job.generations = asked.generations(self._engine.model, sinks)
        self._submit(job)
        try:
            if asked.stream:
                return await _stream(request, job, shaped(job), letters)
            return await _whole(job, shaped(job), letters)
        finally:
            if left := [one for one in job.generations if one.finish_reason is None]:
                self._engine.cancel(*left)

    def _submit(self, job: RequestState) -> None:
        try:
            self._engine.submit(*job.generations)
        except QueueFull as error:
            raise errors.full() from error
        except EngineStopped as error:
            raise errors.broken(str(error)) from error

    # --- beside it

    async def _models(self, request: web.Request) -> web.Response:
        model = self._engine.model
        permission = {
            "id": f"modelperm-{self._served}",
            "object": "model_permission",
            "created": self._created,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        card = {
            "id": self._served,
            "object": "model",
            "created": self._created,
            "owned_by": "holdfast",
            "root": str(model.path),
            "parent": None,
            "max_model_len": model.max_length,
            "permission": [permission],
            # Beyond vLLM: what a client needs to go on with a completion, and to render for it.
            "seeds": "position",
            "logprobs_mode": "processed",
            "renderer": "template",
            # Why its sequences are run one at a time, and slower for it; null when they are not.
            "solo": model.why_solo or None,
        }
        return json_response({"object": "list", "data": [card]})

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self._engine.failure is None else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=metrics.text(self._engine, served=self._served))

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Keys, and every error in OpenAI's shape."""
        try:
            self._check_key(request)
            return await handler(request)
        except EngineRequestRejected as refused:
            return _refusal(refused)
        except web.HTTPRequestEntityTooLarge:
            said = f"The body is larger than {MAX_BODY} bytes"
            return _refusal(EngineRequestRejected(413, said, kind="RequestEntityTooLarge"))
        except web.HTTPException as error:
            kind = "NotFoundError" if error.status == 404 else "BadRequestError"
            return _refusal(EngineRequestRejected(error.status, error.reason, kind=kind))

    def _check_key(self, request: web.Request) -> None:
        if self._api_key is None or request.path in _OPEN_PATHS:
            return
        given = request.headers.get("Authorization", "").encode()
        if not hmac.compare_digest(given, f"Bearer {self._api_key}".encode()):
            raise EngineRequestRejected(401, "Unauthorized", kind="AuthenticationError")


async def _whole(job: RequestState, shape: ResponseShape, letters: Letters) -> web.Response:
    for _ in range(job.choices):
        _, delta = await letters.get()
        if delta.finish_reason is Finish.ERROR:
            raise errors.broken()
    return json_response(shape.whole())


async def _stream(
    request: web.Request, job: RequestState, shape: ResponseShape, letters: Letters
) -> web.StreamResponse:
    response = web.StreamResponse()
    response.content_type = "text/event-stream"
    response.charset = "utf-8"
    await response.prepare(request)
    try:
        await letters.send(response, shape.opening())
        left = job.choices
        while left:
            choice, delta = await letters.get()
            if delta.finish_reason is Finish.ERROR:
                raise errors.broken()
            await letters.send(response, shape.chunks(choice, delta))
            left -= delta.finish_reason is not None
        if job.asked.usage:
            await letters.send(response, [shape.closing()])
    except EngineRequestRejected as refused:
        await letters.send(response, [{"error": refused.error}])
    await letters.close(response)
    return response


def json_response(content: object) -> web.Response:
    return web.Response(body=_encode(content), content_type="application/json")


def _refusal(refused: EngineRequestRejected) -> web.Response:
    response = web.Response(
        body=refused.encoded(), status=refused.status, content_type="application/json"
    )
    if refused.retry_after is not None:
        response.headers["Retry-After"] = str(refused.retry_after)
    return response
