"""Handles the routes of an agent.

They handle a call from its body to its answer or rejection, the token count of a prompt, and the
end that the agent reports.

The rejection of a call that would sample is durable before it is sent (see `rejections`), whichever
part of the gateway rejects the call. A stream sends the parts of its answer as they become durable,
and keep-alives while there are no new parts. Its terminal event is sent when the whole answer is
recorded.
"""

import asyncio
import logging

import msgspec
from aiohttp import web
from msgspec import Struct, structs

from holdfast import crashpoint
from holdfast.gateway.calls.rejections import attempt_over, gateway_failed
from holdfast.gateway.calls.trajectory import AgentTrajectory, CallSubscription
from holdfast.gateway.calls.unsupported import MESSAGES, IgnoredFields, rejection_of
from holdfast.gateway.http.request import RequestContext
from holdfast.gateway.protocol.messages import (
    EventStream,
    GenerationRequest,
    RequestRejected,
    StreamMismatch,
    Wire,
    shorten,
)
from holdfast.off_loop import off_loop
from holdfast.policy.rendering.messages_only import MessagesOnly
from holdfast.policy.rendering.reasoning_effort import renderer_at
from holdfast.records.errors import Unsupported
from holdfast.records.trajectory import Status
from holdfast.rollout.replay.session import Session

END_SECONDS = 60.0
"""Seconds for the end of a trajectory to become durable."""
_log = logging.getLogger("holdfast.gateway")


class Bound(Struct):
    """A trajectory that a key is bound to."""

    trajectory: AgentTrajectory
    known: set[str]
    """The ids of the answers that were recorded or sent before. A call that gets such an answer
    counts as replayed."""
    keys: list[str]
    ends: bool
    """Whether the attempt ends when the agent says that it is done."""


async def call(
    context: RequestContext, bound: Bound, *, ignored_fields: IgnoredFields
) -> web.StreamResponse:
    """Handles a call: sends its answer in the requested form."""
    trajectory, wire, body = bound.trajectory, context.wire, b""
    assert wire is not None, "a call's path is a wire's"
    try:
        trajectory.check_not_completed()
        body = await context.body()
        request = await off_loop(
            lambda: ignored_fields.parse(context.path, wire, body, known=trajectory.lookup),
            size=len(body),
        )
        context.ignored = request.ignored
        headers = context.request.headers
        subscription = await trajectory.subscribe(
            request,
            wire=context.path,
            again=headers.get("x-stainless-retry-count", "0") not in ("", "0"),
            name=headers.get("idempotency-key", ""),
            body=body,
        )
    except Exception as error:
        # Every error of the gateway itself gets the same response.
        rejection = error if isinstance(error, RequestRejected) else gateway_failed()
        await trajectory.record_rejection(rejection, wire=context.path, body=body)
        raise
    delivered = False
    try:
        if request.stream:
            response = await _stream(context, wire, wire.stream(request), subscription)
        else:
            answer = await subscription.answer()
            context.answer_id = answer.id
            response = await context.send(wire.format_answer(request, answer))
        # An error that ends a stream is not an answer, so a repeated request is the same call.
        delivered = bool(context.answer_id)
    finally:
        context.leave(subscription, delivered=delivered)
        if context.answer_id:
            context.replayed = context.answer_id in bound.known
            bound.known.add(context.answer_id)
    return response


async def _stream(
    context: RequestContext, wire: Wire, stream: EventStream, subscription: CallSubscription
) -> web.StreamResponse:
    """Streams an answer. Raises `RequestRejected` only as long as nothing was sent."""
    headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
    response = web.StreamResponse(headers=headers)
    while True:
        deltas = await subscription.next_deltas(context.limits.ping_seconds)
        # A call that is rejected at once gets its own status instead of a stream with status 200.
        if subscription.is_ready:
            break
        opening = subscription.opening if deltas else None
        if not context.has_begun:
            await context.begin(response, "" if opening is None else opening.id)
        if opening is None:
            await context.write(response.write(wire.keep_alive()))
        else:
            await context.write(response.write(b"".join(stream.more(opening, deltas))))
            crashpoint.reach("gateway.delta")
    events = await _last_events(context, stream, subscription)
    if not context.has_begun:
        await context.begin(response)
    crashpoint.reach("gateway.recorded")
    for event in events:
        await context.write(response.write(event))
    await context.write(response.write_eof())
    crashpoint.reach("gateway.sent")
    return response


async def _last_events(
    context: RequestContext, stream: EventStream, subscription: CallSubscription
) -> list[bytes]:
    try:
        answer = await subscription.answer()
        context.answer_id = answer.id
        return stream.end(answer)
    except RequestRejected as rejection:
        if not context.has_begun:
            raise
        context.status = rejection.status
        return [stream.error(rejection)]
    except StreamMismatch as error:
        _log.error("a stream of %r is broken off: %s", context.trajectory, error)
        context.abort()
        raise ConnectionResetError("the answer does not begin with what was sent of it") from error


async def count_tokens(trajectory: AgentTrajectory, request: GenerationRequest) -> int:
    """Returns the length of the prompt that would be sent now. Sampled tokens are counted as they
    were sampled, and only the rest is rendered. The prompt is neither sampled from nor recorded.
    Raises `RequestRejected`."""
    run, kwargs = trajectory.session.context.spec.sampling, request.chat_template_kwargs
    sampling = structs.replace(
        run,
        reasoning_effort=request.reasoning_effort or run.reasoning_effort,
        chat_template_kwargs=run.chat_template_kwargs if kwargs is None else kwargs,
    )
    try:
        renderer = renderer_at(trajectory.session.speaker.renderer, sampling)
        if isinstance(renderer, MessagesOnly):
            raise RequestRejected(
                400, "the engine takes messages and tells no tokens: they cannot be counted"
            )
        position = trajectory.position(request)
        prompt = await position.stream.prepare(
            position.messages, request.tools, renderer=renderer, sampling=sampling
        )
    except Unsupported as error:
        raise rejection_of(error, request, MESSAGES) or error from error
    return prompt.keep + len(prompt.delta)


async def until_durable(session: Session) -> None:
    """Waits until the attempt's last record is durable. Raises `RequestRejected` if this takes
    longer than `END_SECONDS`, or if the attempt has no outcome."""
    try:
        async with asyncio.timeout(END_SECONDS):
            await session.state.concluded.wait()
    except TimeoutError:
        message = "the end is not durable yet; say it again"
        raise RequestRejected(503, message, code="busy") from None
    finished = session.history.finished
    if finished is None or finished.status is Status.FAILED:
        raise attempt_over(session.state.broken)


def completed(reward: float | None) -> bytes:
    """Returns the body of the response to `/complete`."""
    return msgspec.json.encode({"completed": True, "reward": reward})


def parse_reward(body: bytes) -> float | None:
    """Returns the reward in the body of `/complete`, or None if the body has none."""
    if not body.strip():
        return None
    try:
        sent = msgspec.json.decode(body, type=dict[str, float | None])
    except (ValueError, RecursionError) as error:
        raise RequestRejected(400, f'it wants {{"reward": 0.5}}, or nothing: {error}') from error
    if unknown := sorted(sent.keys() - {"reward"}):
        message = (
            f'unknown field {shorten(unknown[0])!r}; it wants {{"reward": number}}, or nothing'
        )
        raise RequestRejected(400, message, param=unknown[0])
    return sent.get("reward")
