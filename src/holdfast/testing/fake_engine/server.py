"""The HTTP side of the fake engine: its endpoints, and the path of a call through them.

It draws one sample for each request, and answers with status 400 to a request for several samples.
If a client disconnects, its request stops, as in vLLM.
"""

import asyncio
import time
import uuid
from collections.abc import Callable
from typing import ClassVar

import msgspec
from aiohttp import web

from holdfast.engine_api import errors
from holdfast.engine_api.requests import decode
from holdfast.testing.fake_engine import answer, connection
from holdfast.testing.fake_engine import misbehaviour as wrong
from holdfast.testing.fake_engine.faults import Fault, FaultKind, FaultPlan
from holdfast.testing.fake_engine.generation import FakeGeneration
from holdfast.testing.fake_engine.ledger import Ledger
from holdfast.testing.fake_engine.options import FakeOptions, LogprobsMode
from holdfast.testing.fake_engine.request import FakeRequest, FakeWire
from holdfast.testing.fake_engine.schedule import FakeWeights, Schedule
from holdfast.testing.fake_engine.tokens import OutOfVocabulary, Sampler
from holdfast.testing.fake_engine.wires.registry import EngineSides, served_routes

MAX_BODY_BYTES = 1 << 28
MAX_PROBE_BYTES = 1 << 10
MAX_SCALE = 16.0
PROBED = "/inference/v1/generate"


class FakeServer:
    """One engine: its options, its fault plan, its schedule and its ledger."""

    sides: ClassVar = EngineSides()

    def __init__(self, options: FakeOptions):
        self._options = options
        self._sampler = Sampler(options.mean_length, options.replies)
        self._plan = FaultPlan(options.faults)
        self._ledger = Ledger()
        self._schedule = Schedule(
            self._ledger,
            self.make_weights(),
            version=options.version,
            token_delay=options.token_delay,
        )
        self._created = int(time.time())

    def make_weights(self) -> FakeWeights:
        return FakeWeights()

    def application(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[connection.send_errors])
        routes = served_routes(self._options, self._schedule, self.sides)
        for path, wire in routes.wires.items():
            app.router.add_post(path, self._endpoint(wire))
        for path, listing in routes.models.items():
            app.router.add_get(path, connection.answer_with(self._listing(listing)))
        if routes.health:
            app.router.add_get("/health", self._health)
        if routes.add_side is not None:
            routes.add_side(app.router)
        self._add_controls(app.router)
        return app

    def _add_controls(self, router: web.UrlDispatcher) -> None:
        """Adds the routes by which the handle controls the engine."""
        router.add_get("/stats", connection.answer_with(self._stats))
        router.add_get("/requests", connection.answer_with(self._requests))
        router.add_get("/calls", connection.answer_with(lambda: self._ledger.calls))
        router.add_post("/reset", self._reset)
        router.add_post("/faults", self._set_faults)
        router.add_post("/weights", self._set_weights)
        router.add_post("/release", self._release)

    # --- the work

    def _endpoint(self, wire: FakeWire) -> connection.Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            raw = await request.read()
            if _is_probe(request.path, raw):
                # A client tests whether the endpoint exists. This is not a request to sample.
                wire.read(raw, "")
            request_id = await _id_of(request, wire)
            self._ledger.count_arrival(request_id, request.path)
            fault = self._plan.strike(request_id, request.path)
            if fault is not None:
                self._ledger.count_fault(fault)
            self._ledger.in_flight += 1
            try:
                return await self._serve(request, wire, request_id, fault)
            finally:
                self._ledger.in_flight -= 1

        return handle

    async def _serve(
        self, request: web.Request, wire: FakeWire, request_id: str, fault: Fault | None
    ) -> web.StreamResponse:
        raw = await request.read()
        if fault is not None and (early := await self._instead(request, wire, fault)) is not None:
            return early
        correct = wire.read(raw, request_id)
        correct.version = self._schedule.version
        content = self._content_for(correct)
        self._ledger.record_call(correct, request.path, raw)
        correct.seed = correct.seed_or_random
        job = wrong.actual_request(correct, fault)
        generation = self._generation(job)
        task = answer.AnswerTask(
            request,
            wire,
            job=wrong.reported_request(job, fault),
            fault=fault,
            moment=self._moment(job, fault),
            per_chunk=self._options.tokens_per_chunk,
        )
        if job.stream and (fault is None or fault.kind != FaultKind.RESET_AFTER):
            return await self._stream(task, generation, content)
        async with self._schedule.admit(job.id, generation) as run:
            run.content = content
            await self._wait(fault)
            return await answer.send_plain(task, run)

    async def _stream(
        self, task: answer.AnswerTask, generation: FakeGeneration, content: str | None
    ) -> web.StreamResponse:
        # Sends the headers at once, even while the engine is paused.
        stream = connection.FakeEventStream(task.request)
        self._ledger.stats.streams += 1
        whole = False
        try:
            await stream.begin()
            async with self._schedule.admit(task.job.id, generation) as run:
                run.content = content
                await self._wait(task.fault)
                whole = await answer.send_stream(task, run, stream)
        finally:
            if not whole:
                self._ledger.stats.streams_cut += 1
        return stream.response

    async def _wait(self, fault: Fault | None) -> None:
        seconds = self._options.delay
        if fault is not None and fault.kind not in (FaultKind.STREAM_STALL, FaultKind.HOLD):
            seconds += fault.seconds
        if seconds:
            await asyncio.sleep(seconds)

    async def _instead(
        self, request: web.Request, wire: FakeWire, fault: Fault
    ) -> web.StreamResponse | None:
        """Returns the response of a fault that happens instead of the work, or None for any other
        fault."""
        if fault.kind in wrong.STATUSES:
            return connection.error_response(
                wrong.STATUSES[fault.kind], retry_after=fault.retry_after
            )
        if fault.kind == FaultKind.ERROR_200:
            return connection.json_response(wire.error(errors.engine_failed()))
        if fault.kind == FaultKind.CONTEXT_OVERFLOW:
            limit = self._options.max_model_len
            raise errors.too_long(limit, limit + 1, 0)
        if fault.kind == FaultKind.HANG:
            await asyncio.sleep(fault.seconds or answer.FOREVER_SECONDS)
        if fault.kind in (FaultKind.HANG, FaultKind.RESET_BEFORE):
            return connection.reset(request)
        return None

    def _generation(self, job: FakeRequest) -> FakeGeneration:
        try:
            return FakeGeneration(
                self._sampler,
                job.prompt,
                seed=job.seed_or_random,
                limits=job.limits,
                schema=job.schema,
                seeds=self._options.seeds,
                scale=_scale(job, self._options.logprobs_mode),
            )
        except OutOfVocabulary as error:
            raise errors.out_of_vocabulary(error.token) from error

    def _moment(self, job: FakeRequest, fault: Fault | None) -> int | None:
        if fault is None:
            return None
        right = self._generation(job)
        right.advance(job.limits.max_tokens, self._schedule.version)
        return wrong.moment(fault, len(right.ids))

    # --- beside the work

    def _content_for(self, job: FakeRequest) -> str | None:
        """Returns the weights with which a request is sampled. None means the weights that are
        loaded at each token."""
        version = self._schedule.version
        return self._schedule.weights.content_for(job.model, job.prompt, version=version)

    def _listing(self, listing: Callable[[FakeOptions, int], object]) -> Callable[[], object]:
        def listed() -> object:
            fields = msgspec.to_builtins(listing(self._options, self._created))
            for name, folder in self._schedule.weights.adapters.items():
                parent = fields["data"][0]
                entry = {**parent, "id": name, "root": str(folder), "parent": parent["id"]}
                fields["data"].append(entry)
            return fields

        return listed

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    def _stats(self) -> object:
        stats = self._ledger.stats
        stats.held, stats.in_flight = self._schedule.held, self._ledger.in_flight
        return stats

    def _requests(self) -> object:
        return [(request_id, n) for n, request_id in enumerate(self._ledger.arrivals)]

    async def _reset(self, request: web.Request) -> web.Response:
        self._ledger.reset()
        return connection.json_bytes(b"{}")

    async def _set_faults(self, request: web.Request) -> web.Response:
        faults = decode(await request.read(), list[Fault])
        self._plan = FaultPlan(faults)
        return connection.json_bytes(b"{}")

    async def _set_weights(self, request: web.Request) -> web.Response:
        self._schedule.version = (await request.read()).decode()
        self._schedule.weights.reset_cache()
        return connection.json_bytes(b"{}")

    async def _release(self, request: web.Request) -> web.Response:
        await self._schedule.release()
        return connection.json_bytes(b"{}")


def _scale(job: FakeRequest, mode: LogprobsMode) -> float:
    """Returns the factor of the logprobs. As in every engine, greedy replies have the logprobs of
    temperature 1."""
    if mode == "raw" or not job.temperature:
        return 1.0
    scale = job.temperature * (job.top_p if mode == "processed" else 1.0)
    return min(scale, MAX_SCALE)


def _is_probe(path: str, raw: bytes) -> bool:
    """Returns whether a request only tests the endpoint: a request that is empty, or names only a
    model."""
    if path == PROBED and raw == b"{}":
        return True
    if len(raw) > MAX_PROBE_BYTES:
        return False
    try:
        body = msgspec.json.decode(raw)
    except (ValueError, RecursionError):  # `read` raises, with the reason.
        return False
    return isinstance(body, dict) and body.keys() == {"model"}


async def _id_of(request: web.Request, wire: FakeWire) -> str:
    named = request.headers.get("X-Request-Id") or wire.request_id(await request.read())
    return named or uuid.uuid4().hex
