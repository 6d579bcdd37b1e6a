"""Calling: one call of an agent, from its body to the answer that it is told, or to its refusal.

What is refused here is a call that would sample. It is durable before the agent is told (see
`refusals`), whichever part of the gateway refuses it.
"""

from aiohttp import web
from msgspec import Struct

from holdfast.gateway.calls.call import Hearing
from holdfast.gateway.calls.strip_fields import Ignoring
from holdfast.gateway.calls.trajectory import AgentTrajectory
from holdfast.gateway.http.exceptions import gateway_failed
from holdfast.gateway.http.relay import Tickets
from holdfast.gateway.http.request import Visit
from holdfast.gateway.protocol.messages import Ask, RequestRejected


class Bound(Struct):
    """A trajectory while a key belongs to it."""

    trajectory: AgentTrajectory
    known: set[str]
    """The ids of answers that were sampled before they are asked for."""
    keys: list[str]
    ends: bool
    """Whether the attempt ends when the agent says that it is done."""


async def call(
    visit: Visit, bound: Bound, *, ignoring: Ignoring, tickets: Tickets
) -> web.StreamResponse:
    """Tells the answer, as it was asked for."""
    trajectory = bound.trajectory
    body = b""
    try:
        trajectory.check_not_completed()
        body = await visit.body()
        ask = _read(visit, trajectory, body, ignoring)
        hearing = await _heard(visit, trajectory, ask, body)
    except RequestRejected as refused:
        await trajectory.refused(refused, wire=visit.path, body=body)
        raise
    except Exception:
        # How it is told is the same for all that goes wrong in the gateway.
        await trajectory.refused(gateway_failed(), wire=visit.path, body=body)
        raise
    return await _told(visit, bound, ask, hearing, tickets)


def _read(visit: Visit, trajectory: AgentTrajectory, body: bytes, ignoring: Ignoring) -> Ask:
    assert visit.wire is not None, "a call's path is a wire's"
    ask = ignoring.ask(visit.path, visit.wire, body, known=trajectory.past)
    visit.ignored = ask.ignored
    return ask


async def _heard(visit: Visit, trajectory: AgentTrajectory, ask: Ask, body: bytes) -> Hearing:
    # The agent may have said that it is done while the body came.
    trajectory.check_not_completed()
    headers = visit.request.headers
    return await trajectory.hear(
        ask,
        wire=visit.path,
        again=headers.get("x-stainless-retry-count", "0") not in ("", "0"),
        name=headers.get("idempotency-key", ""),
        body=body,
    )


async def _told(
    visit: Visit, bound: Bound, ask: Ask, hearing: Hearing, tickets: Tickets
) -> web.StreamResponse:
    assert visit.wire is not None, "a call's path is a wire's"
    telling, delivered = visit.telling, False
    try:
        response = await telling.call(visit.wire, ask, hearing=hearing)
        # An error that ends a stream is no answer: asked again, it is the same call.
        delivered = telling.answer is not None
    finally:
        hearing.leave(delivered=delivered)
        if visit.ticket:
            tickets.put(visit.ticket, hearing)
        if telling.answer is not None:
            visit.replayed = telling.answer.id in bound.known
            bound.known.add(telling.answer.id)
    return response
