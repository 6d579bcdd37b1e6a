"""Calls of one trajectory, without HTTP."""

from contextlib import asynccontextmanager

from holdfast.gateway.calls.trajectory import AgentTrajectory
from holdfast.gateway.protocol.messages import GenerationRequest
from holdfast.records.message import Message, system, user
from support.rollout.stage import TrajectoryUnderTest

HELLO = (system("be brief"), user("hello"))


def ask(*messages: Message, **options) -> GenerationRequest:
    return GenerationRequest(model="some-model", messages=messages, **options)


@asynccontextmanager
async def attempt(subject: TrajectoryUnderTest):
    """One attempt of the agent, as a resumed process would have it."""
    session = await subject.session()
    trajectory = AgentTrajectory(session)
    try:
        yield trajectory
        await session.log.cut_untaken()
    finally:
        await trajectory.aclose()


async def answer_to(trajectory: AgentTrajectory, request: GenerationRequest, **options):
    subscription = await trajectory.subscribe(request, wire="test", **options)
    try:
        return await subscription.result()
    finally:
        subscription.leave(delivered=True)
