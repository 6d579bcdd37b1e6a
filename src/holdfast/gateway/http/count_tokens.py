"""How long the prompt of a request would be: counted, not sampled, and nothing of it recorded."""

from msgspec import structs

from holdfast.gateway.calls.strip_fields import MESSAGES
from holdfast.gateway.calls.trajectory import AgentTrajectory
from holdfast.gateway.calls.unsupported import refusal_of
from holdfast.gateway.protocol.messages import Ask, RequestRejected
from holdfast.policy.rendering.messages_only import MessagesOnly
from holdfast.policy.rendering.reasoning_effort import at_effort
from holdfast.records.errors import Unsupported


async def prompt_tokens(trajectory: AgentTrajectory, ask: Ask) -> int:
    """Of the prompt that would be sent now: what was sampled before is counted as it was sampled,
    and only what is new is rendered. Raises `RequestRejected`."""
    try:
        return await _prompt_tokens(trajectory, ask)
    except Unsupported as error:
        raise refusal_of(error, ask, MESSAGES) or error from error


async def _prompt_tokens(trajectory: AgentTrajectory, ask: Ask) -> int:
    session = trajectory.session
    effort = ask.reasoning_effort or session.context.spec.sampling.reasoning_effort
    renderer = at_effort(session.speaker.renderer, effort)
    if isinstance(renderer, MessagesOnly):
        raise RequestRejected(
            400, "the engine takes messages and tells no tokens: they cannot be counted"
        )
    place = trajectory.place(ask)
    sampling = structs.replace(session.context.spec.sampling, reasoning_effort=effort)
    prompt = await place.stream.prepare(
        place.messages, ask.tools, renderer=renderer, sampling=sampling
    )
    return prompt.keep + len(prompt.delta)
