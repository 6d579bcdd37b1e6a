"""The HTTP side of one engine is OpenAI-compatible, with vLLM's answers.

Every request that has begun is either answered or cancelled. If a client goes away, its places in
the batch are free before the next step.
"""

import asyncio
import hmac
import time
import uuid
from collections.abc import Awaitable, Callable

from aiohttp import web

from holdfast.embedded.http.chat_prompt import parse_chat
from holdfast.embedded.http.parse_request import (
    ParsedRequest,
    parse_completions,
    parse_generate,
)
from holdfast.embedded.http.response import EngineResponse
from holdfast.embedded.http.token_queue import TokenDispatcher, TokenQueue
from holdfast.embedded.http.weight_routes import WeightRoutes, json_response
from holdfast.embedded.scheduler.engine import DecodeEngine, EngineStopped, QueueFull
from holdfast.embedded.scheduler.generation import Finish
from holdfast.engine_api import errors
from holdfast.engine_api.errors import EngineRequestRejected
from holdfast.engine_api.responses import (
    ChatShape,
    CompletionsShape,
    GenerateShape,
    ResponseShape,
    model_list,
)
from holdfast.off_loop import off_loop
from holdfast.prometheus import Family, histogram, label, render, single
from holdfast.request_body import MAX_BODY_BYTES, read_body, too_large
from holdfast.request_guard import RequestRefused, check_request

_OPEN_PATHS = ("/health",)
_SAMPLING_PATHS = ("/v1/completions", "/v1/chat/completions", "/inference/v1/generate")
_KINDS = {403: "PermissionDeniedError", 413: "RequestEntityTooLarge"}
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_Parser = Callable[..., ParsedRequest]


class Server:
    """One engine behind HTTP. Run `application` in the event loop that made it."""

    def __init__(
        self,
        engine: DecodeEngine,
        *,
        served: str,
        api_key: str | None = None,
        token: str = "",
        log: Callable[[str], object] | None = None,
    ):
        """With an `api_key`, every request needs it. Without one, any client that reaches the
        server may sample, and `token` protects the routes that change the engine. `log` is called
        with the id of each accepted request."""
        self._engine = engine
        self._log = log
        self._served = served
        self._api_key = api_key
        self._token = token
        self._dispatcher = TokenDispatcher(asyncio.get_running_loop())
        self._created = int(time.time())

    def application(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._guard])
        add_post = app.router.add_post
        add_post("/v1/completions", self._endpoint(parse_completions, CompletionsShape))
        add_post("/v1/chat/completions", self._endpoint(parse_chat, ChatShape))
        add_post("/inference/v1/generate", self._endpoint(parse_generate, GenerateShape))
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        WeightRoutes(self._engine).add_to(app.router)
        return app

    # --- generating

    def _endpoint(self, parse: _Parser, shape: type[ResponseShape]) -> _Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            return await self._respond(request, await self._parse(request, parse), shape)

        return handle

    async def _parse(self, request: web.Request, parse: _Parser) -> ParsedRequest:
        """Parses the body of a request. A large body is parsed in a thread."""
        raw = await read_body(request)
        return await off_loop(
            lambda: parse(raw, self._engine.model, served=self._served), size=len(raw)
        )

    async def _respond(
        self, request: web.Request, parsed: ParsedRequest, shape: type[ResponseShape]
    ) -> web.StreamResponse:
        request_id = request.headers.get("X-Request-Id") or uuid.uuid4().hex[:16]
        if self._log is not None:
            self._log(request_id)
        model = self._engine.model
        response = EngineResponse(
            parsed, model, served=self._served, request_id=request_id, shape=shape
        )
        queue = TokenQueue(request)
        sinks = [self._dispatcher.sink(queue, choice) for choice in range(response.choices)]
        response.generations = parsed.generations(model, sinks)
        self._submit(response)
        try:
            if parsed.stream:
                return await _stream(request, response, queue)
            return await _whole(response, queue)
        finally:
            unfinished = [g for g in response.generations if g.finish_reason is None]
            if unfinished:
                self._engine.cancel(*unfinished)

    def _submit(self, response: EngineResponse) -> None:
        try:
            self._engine.submit(*response.generations)
        except QueueFull as error:
            raise errors.unavailable("The waiting queue is full", retry_after=1) from error
        except EngineStopped as error:
            raise errors.engine_failed(str(error)) from error

    # --- other routes

    async def _models(self, request: web.Request) -> web.Response:
        model = self._engine.model
        return json_response(
            model_list(
                self._served,
                created=self._created,
                owner="holdfast",
                root=str(model.path),
                max_model_len=model.max_length,
                # vLLM has no such fields. Clients need them to continue a completion and to render.
                seeds="position",
                logprobs_mode="processed",
                renderer="template",
                # Why sequences run one at a time, which is slower. Null if they run in batches.
                solo=model.why_solo or None,
            )
        )

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self._engine.failure is None else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=render_metrics(self._engine, served=self._served))

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Checks the client's rights, and returns every error in OpenAI's shape."""
        try:
            check_request(request, names=() if self._api_key is None else None)
            self._check_key(request)
            return await handler(request)
        except RequestRefused as refusal:
            return _error_response(
                EngineRequestRejected(
                    refusal.status, str(refusal), kind=_KINDS.get(refusal.status, "BadRequestError")
                )
            )
        except EngineRequestRejected as error:
            return _error_response(error)
        except web.HTTPRequestEntityTooLarge:
            message = too_large(MAX_BODY_BYTES)
            return _error_response(EngineRequestRejected(413, message, kind=_KINDS[413]))
        except web.HTTPException as error:
            kind = "NotFoundError" if error.status == 404 else "BadRequestError"
            return _error_response(EngineRequestRejected(error.status, error.reason, kind=kind))

    def _check_key(self, request: web.Request) -> None:
        if request.path in _OPEN_PATHS:
            return
        is_harmless = request.method in ("GET", "HEAD") or request.path in _SAMPLING_PATHS
        if self._api_key is None and is_harmless:
            return
        key = self._api_key or self._token
        header = request.headers.get("Authorization", "").encode()
        if not key or not hmac.compare_digest(header, f"Bearer {key}".encode()):
            raise EngineRequestRejected(401, self._unauthorized, kind="AuthenticationError")

    @property
    def _unauthorized(self) -> str:
        if self._api_key is not None:
            return "Unauthorized"
        return (
            "Unauthorized: this changes the engine, and wants the server's token, which is in "
            "the file that the server named at its start"
        )


async def _whole(response: EngineResponse, queue: TokenQueue) -> web.Response:
    for _ in range(response.choices):
        _, delta = await queue.get()
        if delta.finish_reason is Finish.ERROR:
            raise errors.engine_failed()
    return json_response(response.whole())


async def _stream(
    request: web.Request, response: EngineResponse, queue: TokenQueue
) -> web.StreamResponse:
    stream = web.StreamResponse()
    stream.content_type = "text/event-stream"
    stream.charset = "utf-8"
    await stream.prepare(request)
    try:
        await queue.send(stream, response.opening())
        left = response.choices
        while left:
            choice, delta = await queue.get()
            if delta.finish_reason is Finish.ERROR:
                raise errors.engine_failed()
            await queue.send(stream, [response.chunk(choice, delta)])
            left -= delta.finish_reason is not None
        await queue.send(stream, response.closing())
    except EngineRequestRejected as error:
        await queue.send(stream, [error.body])
    await queue.close(stream)
    return stream


def _error_response(error: EngineRequestRejected) -> web.Response:
    response = web.Response(
        body=error.encode(), status=error.status, content_type="application/json"
    )
    if error.retry_after is not None:
        response.headers["Retry-After"] = f"{error.retry_after:g}"
    return response


def render_metrics(engine: DecodeEngine, *, served: str) -> str:
    return render([(label("model_name", served), _families(engine))], prefix="holdfast_")


def _families(engine: DecodeEngine) -> list[Family]:
    stats = engine.statistics
    finished = [
        ("", label("finish_reason", reason), float(count))
        for reason, count in sorted(stats.finished.items())
    ]
    limits = [1 << power for power in range(len(stats.rows) - 1)]
    passes = histogram("", limits, counts=stats.rows, total=stats.row_sum)
    return [
        single("requests_running", "gauge", engine.running),
        single("requests_waiting", "gauge", engine.waiting),
        single("paused", "gauge", engine.paused),
        single("kv_cache_usage_ratio", "gauge", engine.cache_use),
        single("prompt_tokens_total", "counter", stats.prompt_tokens),
        single("generation_tokens_total", "counter", stats.generation_tokens),
        single("weight_updates_total", "counter", stats.weight_updates),
        Family("requests_finished_total", "counter", tuple(finished)),
        Family("weight_version_info", "gauge", (("", label("version", engine.version), 1.0),)),
        Family("pass_tokens", "histogram", tuple(passes)),
    ]
