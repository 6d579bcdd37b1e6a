"""A trajectory of very many calls: what a call costs does not grow with those before it."""

import asyncio
import gc
import json
import sys
import weakref

import pytest

from holdfast.gateway.calls.trajectory import AgentTrajectory
from holdfast.gateway.wires.openai.chat import OpenAIChat
from holdfast.journal.sqlite.journal import MemoryJournal
from holdfast.records.encoding import codec
from holdfast.records.history import stream_of
from holdfast.records.step import Called, Generated
from support.rollout.stage import TrajectoryUnderTest

WIRE = OpenAIChat()


class Work:
    """Counts what Python does, calls of functions of whatever kind: unlike time, it is the same on
    any machine and under any load."""

    def __init__(self) -> None:
        self.calls = 0

    def __enter__(self) -> "Work":
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _count(self, frame: object, event: str, _: object) -> None:
        self.calls += event in ("call", "c_call")


class Agent:
    """Sends its whole conversation with each call, as agents do."""

    def __init__(self, trajectory: AgentTrajectory):
        self.trajectory = trajectory
        self.messages: list[dict[str, str]] = []
        self.answers: list[bytes] = []

    async def call(self, number: int) -> None:
        self.messages.append({"role": "user", "content": f"and what of number {number:05}?"})
        body = json.dumps({"model": "m", "max_tokens": 64, "messages": self.messages}).encode()
        request = WIRE.parse(body, self.trajectory.lookup)
        subscription = await self.trajectory.subscribe(request, wire="/v1/chat/completions")
        answer = await subscription.answer()
        subscription.leave(delivered=True)
        self.answers.append(WIRE.format_answer(request, answer))
        reply = json.loads(self.answers[-1])["choices"][0]["message"]["content"]
        self.messages.append({"role": "assistant", "content": reply})


async def conversed(subject: TrajectoryUnderTest, calls: int) -> tuple[list[bytes], list[int]]:
    """An attempt that asks so many times: the answers that it got, and what each call took."""
    trajectory = AgentTrajectory(await subject.session())
    agent, work = Agent(trajectory), []
    try:
        for number in range(calls):
            with Work() as done:
                await agent.call(number)
            work.append(done.calls)
    finally:
        await trajectory.aclose()
    return agent.answers, work


def check_flat(values: list[int]) -> None:
    """Those at the end are about as large as those near the beginning."""
    few = len(values) // 5
    early, late = sorted(values[few : 2 * few])[few // 2], sorted(values[-few:])[few // 2]
    assert late <= 1.15 * early, (early, late)


def check_long_trajectory(calls: int) -> None:
    async def body() -> None:
        subject = TrajectoryUnderTest(journal=MemoryJournal())
        received, live = await conversed(subject, calls)
        check_flat(live)
        lease = await subject.lease()
        records = await subject.journal.history(lease.id)
        kept = [record for record in records if isinstance(record, Generated | Called)]
        sizes = [len(codec.encode(item)) for item in kept if not getattr(item, "received", 0)]
        assert len(sizes) == 2 * calls
        check_flat([size + other for size, other in zip(sizes[::2], sizes[1::2], strict=True)])

        history = await subject.history()
        prompts = [request.prompt for request in subject.oracle.requests]
        for step, prompt, following in zip(
            history.generations, prompts, [*prompts[1:], None], strict=True
        ):
            so_far = stream_of(history, step.path)
            assert so_far[: len(prompt)] == prompt
            assert following is None or following[: len(so_far)] == so_far
        assert not history.prefix_breaks

        again, replayed = await conversed(subject, calls)
        assert again == received
        assert len(subject.oracle.requests) == calls, "nothing is sampled a second time"
        check_flat(replayed)

    asyncio.run(body())


def test_a_call_costs_as_much_at_the_end_of_a_long_trajectory_as_at_its_beginning() -> None:
    check_long_trajectory(200)


def test_what_a_trajectory_holds_is_free_when_it_has_ended() -> None:
    """Without a look for cycles: a run makes those rare, and whole conversations would pile up."""

    async def held(subject: TrajectoryUnderTest) -> "weakref.ref[AgentTrajectory]":
        trajectory = AgentTrajectory(await subject.session())
        agent = Agent(trajectory)
        for number in range(3):
            await agent.call(number)
        await trajectory.aclose()
        return weakref.ref(trajectory)

    async def body() -> None:
        ref = await held(TrajectoryUnderTest())
        await asyncio.sleep(0)
        assert ref() is None

    gc.collect()
    gc.disable()
    try:
        asyncio.run(body())
    finally:
        gc.enable()


@pytest.mark.exhaustive
def test_a_trajectory_of_a_thousand_calls() -> None:
    check_long_trajectory(1_000)
