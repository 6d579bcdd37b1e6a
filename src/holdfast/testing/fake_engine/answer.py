"""The response to one request of the fake engine: plain or streamed, right or with a fault.

Every fault that begins after the request was read happens here.
"""

import asyncio

from aiohttp import web
from msgspec import Struct

from holdfast.engine_api import errors
from holdfast.testing.fake_engine import connection
from holdfast.testing.fake_engine import misbehaviour as wrong
from holdfast.testing.fake_engine.faults import Fault, FaultKind
from holdfast.testing.fake_engine.generation import FakeGeneration
from holdfast.testing.fake_engine.request import FakeRequest, FakeWire
from holdfast.testing.fake_engine.schedule import FakeRun

FOREVER_SECONDS = 1e9


class AnswerTask(Struct):
    """One request that was read, with its connection, its fault and how to answer it."""

    request: web.Request
    wire: FakeWire
    job: FakeRequest
    """The request as the response reports it."""
    fault: Fault | None
    moment: int | None
    """The number of tokens after which the fault begins."""
    per_chunk: int


async def send_plain(task: AnswerTask, run: FakeRun) -> web.StreamResponse:
    """Sends the whole answer at once."""
    interrupted = task.fault is not None and task.fault.kind in wrong.INTERRUPTIONS
    while run.generation.finish_reason is None:
        if interrupted and len(run.generation.ids) == task.moment:
            break
        await _hold(task, run)
        await run.advance(_next(task, run.generation, task.job.limits.max_tokens))
    if task.fault is None:
        return connection.json_bytes(
            connection.encode(task.wire.whole(task.job, run.generation.take()))
        )
    if interrupted:
        return await _plain_interruption(task, run.generation)
    return await _send_spoiled(task, run.generation, task.fault.kind)


async def _plain_interruption(task: AnswerTask, generation: FakeGeneration) -> web.StreamResponse:
    assert task.fault is not None, "something interrupts"
    kind = task.fault.kind
    if kind == FaultKind.STREAM_ERROR:
        raise errors.engine_failed()
    if kind == FaultKind.STREAM_STALL:
        await asyncio.sleep(task.fault.seconds or FOREVER_SECONDS)
    if kind in (FaultKind.STREAM_STALL, FaultKind.STREAM_CUT):
        return connection.reset(task.request)
    if kind == FaultKind.ABORT:
        generation.abort()
    return connection.json_bytes(connection.encode(task.wire.whole(task.job, generation.take())))


async def _send_spoiled(
    task: AnswerTask, generation: FakeGeneration, kind: FaultKind
) -> web.StreamResponse:
    if kind == FaultKind.RESET_AFTER:
        return connection.reset(task.request)
    job, pieces = wrong.spoil(task.job, generation.take(), kind)
    answer = task.wire.whole(job, wrong.join_pieces(pieces))
    body = wrong.spoil_bytes(connection.encode(answer), kind)
    if kind == FaultKind.TRUNCATED_BODY:
        return await connection.send_truncated(task.request, body)
    return connection.json_bytes(body)


async def send_stream(task: AnswerTask, run: FakeRun, stream: connection.FakeEventStream) -> bool:
    """Sends the events of a stream, piece by piece. Returns whether both the generation and the
    stream ended regularly."""
    events = _Sender(task, stream)
    try:
        await events.opening()
        if not await _pieces(task, run, events):
            return False
        await events.closing(len(run.generation.ids))
    except ConnectionResetError:
        # The client has disconnected, and the cancellation may come too late.
        return False
    return run.generation.finish_reason != "abort"


async def _pieces(task: AnswerTask, run: FakeRun, events: "_Sender") -> bool:
    """Sends the pieces of a generation. Returns whether the stream ended regularly."""
    generation, fault = run.generation, task.fault
    while generation.finish_reason is None:
        spoil = None
        if fault is not None and len(generation.ids) == task.moment:
            if await _interrupts(fault, generation, events):
                return False
            spoil = fault.kind
        if generation.finish_reason is None:
            await _hold(task, run)
            await run.advance(_next(task, generation, task.per_chunk))
        await events.piece(generation, spoil)
        if spoil == FaultKind.TRUNCATED_BODY:
            return False
        # Without a pause between tokens, a fast stream would block all others.
        await asyncio.sleep(0)
    return True


async def _interrupts(fault: Fault, generation: FakeGeneration, events: "_Sender") -> bool:
    """Applies a fault that interrupts the generation at this moment. Returns whether the stream is
    over."""
    if fault.kind == FaultKind.ABORT:
        generation.abort()
    if fault.kind not in wrong.INTERRUPTIONS or fault.kind == FaultKind.ABORT:
        return False
    if fault.kind == FaultKind.STREAM_ERROR:
        await events.error()
    elif fault.kind == FaultKind.STREAM_END:
        await events.stream.end()
    else:
        if fault.kind == FaultKind.STREAM_STALL:
            await asyncio.sleep(fault.seconds or FOREVER_SECONDS)
        events.stream.reset()
    return True


async def _hold(task: AnswerTask, run: FakeRun) -> None:
    fault = task.fault
    if fault is None or fault.kind != FaultKind.HOLD or len(run.generation.ids) != task.moment:
        return
    await run.hold(fault.seconds)


def _next(task: AnswerTask, generation: FakeGeneration, most: int) -> int:
    """Returns how many tokens to draw next, at most `most`. A piece ends where the fault begins, so
    that the fault lies between two pieces."""
    here = len(generation.ids)
    if task.moment is not None and here < task.moment:
        return min(most, task.moment - here)
    return most


class _Sender:
    """Encodes and sends events, and changes them if a fault spoils them."""

    def __init__(self, task: AnswerTask, stream: connection.FakeEventStream):
        self._task = task
        self._wire = task.wire.for_stream()
        self.stream = stream

    async def opening(self) -> None:
        for event in self._wire.opening(self._task.job):
            await self.stream.send(connection.encode(event))

    async def piece(self, generation: FakeGeneration, spoil: FaultKind | None) -> None:
        job, pieces = self._task.job, [generation.take()]
        if spoil is not None:
            job, pieces = wrong.spoil(job, pieces[0], spoil)
        for piece in pieces:
            for event in self._wire.chunks(job, piece):
                await self._send(connection.encode(event), spoil)

    async def _send(self, data: bytes, spoil: FaultKind | None) -> None:
        fault = self._task.fault
        if spoil is None and fault is not None and fault.kind == FaultKind.NAN_LOGPROB:
            # SGLang's events repeat the earlier tokens, including wrong ones.
            spoil = fault.kind
        if spoil is not None:
            data = wrong.spoil_bytes(data, spoil)
        if spoil == FaultKind.TRUNCATED_BODY:
            await self.stream.break_off(data)
        else:
            await self.stream.send(data)

    async def closing(self, tokens: int) -> None:
        for event in self._wire.closing(self._task.job, tokens):
            await self.stream.send(connection.encode(event))
        await self.stream.send(connection.DONE)
        await self.stream.end()

    async def error(self) -> None:
        event = self._task.wire.error(errors.engine_failed())
        await self.stream.send(connection.encode(event))
        await self.stream.send(connection.DONE)
        await self.stream.end()
