"""One call of an agent, from the body of its HTTP request to its answer or its rejection; and the
count of a prompt's tokens.

A rejection of a call that would sample is durable before it is sent (see `rejections`), whichever
part of the gateway rejects it.
"""

from aiohttp import web
from msgspec import Struct, structs

from holdfast.gateway.calls.call import CallSubscription
from holdfast.gateway.calls.trajectory import AgentTrajectory
from holdfast.gateway.calls.unsupported import MESSAGES, IgnoredFields, rejection_of
from holdfast.gateway.http.exceptions import gateway_failed
from holdfast.gateway.http.request import RequestContext
from holdfast.gateway.protocol.messages import GenerationRequest, RequestRejected
from holdfast.policy.rendering.messages_only import MessagesOnly
from holdfast.policy.rendering.reasoning_effort import renderer_at
from holdfast.records.errors import Unsupported


class Bound(Struct):
    """A trajectory while a key belongs to it."""

    trajectory: AgentTrajectory
    known: set[str]
    """The ids of answers that were sampled before they are requested."""
    keys: list[str]
    ends: bool
    """Whether the attempt ends when the agent says that it is done."""


async def call(
    context: RequestContext, bound: Bound, *, ignored_fields: IgnoredFields
) -> web.StreamResponse:
    """Sends the answer, in the form that was requested."""
    trajectory = bound.trajectory
    body = b""
    try:
        trajectory.check_not_completed()
        body = await context.body()
        request = _parse(context, trajectory, body, ignored_fields)
        subscription = await _subscribe(context, trajectory, request, body)
    except RequestRejected as rejection:
        await trajectory.record_rejection(rejection, wire=context.path, body=body)
        raise
    except Exception:
        # The response is the same for every error of the gateway's own.
        await trajectory.record_rejection(gateway_failed(), wire=context.path, body=body)
        raise
    return await _send(context, bound, request, subscription)


def _parse(
    context: RequestContext, trajectory: AgentTrajectory, body: bytes, ignored_fields: IgnoredFields
) -> GenerationRequest:
    assert context.wire is not None, "a call's path is a wire's"
    request = ignored_fields.parse(context.path, context.wire, body, known=trajectory.lookup)
    context.ignored = request.ignored
    return request


async def _subscribe(
    context: RequestContext, trajectory: AgentTrajectory, request: GenerationRequest, body: bytes
) -> CallSubscription:
    # The agent may have said that it is done while the body came.
    trajectory.check_not_completed()
    headers = context.request.headers
    return await trajectory.subscribe(
        request,
        wire=context.path,
        again=headers.get("x-stainless-retry-count", "0") not in ("", "0"),
        name=headers.get("idempotency-key", ""),
        body=body,
    )


async def _send(
    context: RequestContext,
    bound: Bound,
    request: GenerationRequest,
    subscription: CallSubscription,
) -> web.StreamResponse:
    assert context.wire is not None, "a call's path is a wire's"
    writer, delivered = context.response, False
    try:
        response = await writer.send_answer(context.wire, request, subscription)
        # An error that ends a stream is no answer: requested again, it is the same call.
        delivered = writer.answer is not None
    finally:
        context.leave(subscription, delivered=delivered)
        if writer.answer is not None:
            context.replayed = writer.answer.id in bound.known
            bound.known.add(writer.answer.id)
    return response


async def prompt_tokens(trajectory: AgentTrajectory, request: GenerationRequest) -> int:
    """The length of the prompt that would be sent now: sampled tokens are counted as they were
    sampled, and only the rest is rendered. Nothing is sampled or recorded. Raises
    `RequestRejected`."""
    try:
        return await _prompt_tokens(trajectory, request)
    except Unsupported as error:
        raise rejection_of(error, request, MESSAGES) or error from error


async def _prompt_tokens(trajectory: AgentTrajectory, request: GenerationRequest) -> int:
    session = trajectory.session
    run = session.context.spec.sampling
    sampling = structs.replace(
        run,
        reasoning_effort=request.reasoning_effort or run.reasoning_effort,
        chat_template_kwargs=run.chat_template_kwargs
        if request.chat_template_kwargs is None
        else request.chat_template_kwargs,
    )
    renderer = renderer_at(session.speaker.renderer, sampling)
    if isinstance(renderer, MessagesOnly):
        raise RequestRejected(
            400, "the engine takes messages and tells no tokens: they cannot be counted"
        )
    position = trajectory.position(request)
    prompt = await position.stream.prepare(
        position.messages, request.tools, renderer=renderer, sampling=sampling
    )
    return prompt.keep + len(prompt.delta)
