"""A large prompt keeps nobody else waiting: it is rendered in a thread, and small ones are not."""

import asyncio
import threading
from collections.abc import Sequence

import pytest
from msgspec import structs

from holdfast.gateway.calls.trajectory import AgentTrajectory
from holdfast.gateway.protocol.messages import GenerationRequest
from holdfast.off_loop import MIN_THREAD_SIZE
from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.records.message import Message, user
from holdfast.records.task import Task
from holdfast.rollout.context import Rollout
from holdfast.rollout.replay.session import Session
from support.rollout.stage import Oracle, TrajectoryUnderTest

LARGE_TEXT = "large " * MIN_THREAD_SIZE
PATIENCE = 60
"""Seconds after which a test that should fail does; none waits so long that passes."""


class Watched(ByteRenderer):
    """Says in which threads it works, and does not end with what is large before it may."""

    def __init__(self) -> None:
        self.large: list[threading.Thread] = []
        self.small: list[threading.Thread] = []
        self.begun = threading.Event()
        self.may_end = threading.Event()

    def render(
        self, messages: Sequence[Message], tools: Sequence[dict[str, object]]
    ) -> Sequence[int]:
        if any(len(message.text) >= MIN_THREAD_SIZE for message in messages):
            self.large.append(threading.current_thread())
            self.begun.set()
            assert self.may_end.wait(PATIENCE), "nobody else got on meanwhile"
        else:
            self.small.append(threading.current_thread())
        return super().render(messages, tools)

    def parse(self, completion, *, prompt=(), tools=()) -> Message:
        (self.large if len(prompt) >= MIN_THREAD_SIZE else self.small).append(
            threading.current_thread()
        )
        return super().parse(completion, prompt=prompt, tools=tools)


async def session_with(renderer: ByteRenderer, name: str = "t") -> Session:
    session = await TrajectoryUnderTest(task=Task(id=name, messages=())).session()
    session.speaker = structs.replace(session.speaker, renderer=renderer)
    return session


async def until(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, PATIENCE)


async def test_small_generations_end_while_a_large_prompt_is_rendered():
    renderer = Watched()
    large = Rollout(await session_with(renderer, "large"))
    large.add(LARGE_TEXT)
    generating = asyncio.create_task(large.generate())
    await until(renderer.begun)
    small = Rollout(await session_with(renderer, "small"))
    small.add("small")
    await small.generate()
    assert not generating.done()
    renderer.may_end.set()
    await generating
    assert threading.main_thread() not in renderer.large
    assert set(renderer.small) == {threading.main_thread()}, "a thread would cost more"


async def test_small_calls_of_an_agent_are_answered_while_a_large_one_is_rendered():
    renderer = Watched()
    trajectory = AgentTrajectory(await session_with(renderer))

    async def ask(text: str) -> str:
        wanted = GenerationRequest(model="m", messages=(user(text),), n=3)
        hearing = await trajectory.subscribe(wanted, wire="test")
        answer = await hearing.answer()
        hearing.leave(delivered=True)
        return answer.id

    asking = asyncio.create_task(ask(LARGE_TEXT))
    await until(renderer.begun)
    await ask("small")
    assert not asking.done()
    renderer.may_end.set()
    await asking
    assert threading.main_thread() not in renderer.large
    rendered = renderer.large[0:1]
    assert len(renderer.large) == len(rendered) + 3, "rendered once, parsed for each choice"
    await trajectory.aclose()


async def test_a_large_prompt_is_the_same_prompt_and_replays():
    async def solve(t: Rollout) -> None:
        t.add(LARGE_TEXT)
        await t.generate()
        t.add(*(f"more {number}" for number in range(2)))
        await t.generate()

    subject = TrajectoryUnderTest(Oracle())
    await subject.perform(solve)
    oracle = list(subject.oracle.request_ids)
    await subject.perform(solve)
    assert subject.oracle.request_ids == oracle, "replayed"
    first, second = (await subject.history()).generations
    assert first.delta == ByteRenderer().render([user(LARGE_TEXT)], ()).tobytes()
    assert (second.base, second.keep) == (first.path, len(first.delta + first.ids) // 4)


async def test_a_generation_that_is_given_up_while_it_is_rendered_leaves_nothing_behind():
    renderer = Watched()
    session = await session_with(renderer)
    t = Rollout(session)
    t.add(LARGE_TEXT)
    generating = asyncio.create_task(t.generate())
    await until(renderer.begun)
    generating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await generating
    renderer.may_end.set()
    assert [message.text for message in t.messages] == [LARGE_TEXT]
    reply = await t.generate()
    assert [message.text for message in t.messages] == [LARGE_TEXT, reply.text]


async def test_an_error_in_a_large_rendering_is_the_rollouts_own():
    class Broken(ByteRenderer):
        def render(self, messages, tools):
            raise ValueError("no words for this")

    t = Rollout(await session_with(Broken()))
    t.add(LARGE_TEXT)
    with pytest.raises(ValueError, match="no words for this"):
        await t.generate()
