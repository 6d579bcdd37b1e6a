"""Several attempts of one agent: old ones that live on, long ones, ones that take a short cut."""

import asyncio
import itertools
import time

import aiohttp

from holdfast.gateway.agents.attempt import End
from holdfast.gateway.agents.subprocess import BlackBoxRolloutProcessor
from holdfast.records.message import assistant, user
from holdfast.records.samples.sample import samples_of
from holdfast.records.step import Finished
from holdfast.records.trajectory import Status
from support.engine.local_run import LocalRun
from support.gateway.trajectories import HELLO, answer_to, ask, attempt
from support.rollout.stage import Oracle, TrajectoryUnderTest


class Client:
    """A bare client: what it costs is little, and the same for every call."""

    def __init__(self, binding):
        self._url = f"{binding.url}/v1/chat/completions"
        self._session = aiohttp.ClientSession(headers={"Authorization": f"Bearer {binding.key}"})

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self._session.close()

    async def post(self, messages) -> tuple[int, dict]:
        body = {"model": "m", "messages": messages}
        async with self._session.post(self._url, json=body) as answer:
            return answer.status, await answer.json()

    async def reply_to(self, messages) -> dict:
        status, body = await self.post(messages)
        assert status == 200, body
        return body["choices"][0]["message"]


def user_message(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


# --- two attempts alive at once


class Zombie:
    """Its first attempt fails, but goes on asking with its key while the second one works."""

    def __init__(self) -> None:
        self.attempts = itertools.count(1)
        self.replies: list[tuple[int, dict]] = []
        self.waiting: asyncio.Task | None = None
        self.client: Client | None = None
        self.arrived = asyncio.Event()

    async def __call__(self, binding, task):
        if next(self.attempts) == 1:
            self.client = Client(binding)
            await self.client.reply_to([user_message("first")])
            self.waiting = asyncio.create_task(self.client.post([user_message("slow")]))
            await asyncio.wait_for(self.arrived.wait(), 60)
            raise RuntimeError("the agent is lost")
        async with Client(binding) as new:
            await new.reply_to([user_message("first")])
            assert self.client is not None
            assert self.waiting is not None
            self.replies.append(await self.waiting)
            self.replies.append(await self.client.post([user_message("first")]))
            self.replies.append(await self.client.post([user_message("something else")]))
            await new.reply_to([user_message("second")])
            self.replies.append(await self.client.post([user_message("second")]))
        async with self.client:
            return 1.0


def test_an_old_attempt_that_lives_on_is_refused_and_writes_nothing():
    zombie = Zombie()

    async def answer(request):
        if b"slow" in bytes(token for token in request.prompt if token < 256):
            zombie.arrived.set()
            await asyncio.sleep(3600)
        return f"re {request.seed}"

    local = LocalRun(policy=Oracle(answer))
    local.run(BlackBoxRolloutProcessor(zombie))
    history = local.history()
    assert history.status.name == "COMPLETED", history.failures
    assert [status for status, _ in zombie.replies] == [409] * 4
    assert all(body["error"]["code"] == "attempt_over" for _, body in zombie.replies)
    assert len(history.generations) == 2
    # What the old one waited for is neither recorded nor asked for again.
    assert len(local.policy.requests) == 3
    assert not history.forks


# --- long ones

LONG = 300


def long_one(*, grows: bool) -> tuple[float, float]:
    """CPU per call, the client's included, in the first and the last hundred of a long trajectory,
    which is then lost at its very end and replayed."""
    spent: list[list[float]] = []

    async def subject(binding, task):
        messages, costs = [user_message("begin")], []
        spent.append(costs)
        async with Client(binding) as client:
            for number in range(LONG):
                began = time.process_time()
                message = await client.reply_to(messages)
                costs.append(time.process_time() - began)
                messages = [*messages, message] if grows else messages[:1]
                messages.append(user_message(f"call {number}"))
        if len(spent) == 1:
            raise RuntimeError("lost at the very end")

    local = LocalRun(policy=Oracle(lambda request: f"re {request.seed}"))
    local.run(BlackBoxRolloutProcessor(subject))
    history = local.history()
    assert history.status.name == "COMPLETED", history.failures
    assert len(local.policy.requests) == len(history.generations) == LONG
    assert history.prefix_breaks == (0 if grows else LONG - 1)
    live, replayed = spent
    first, last = (sorted(part)[len(part) // 2] for part in (live[:100], live[-100:]))
    print(
        f"live {1000 * first:.2f} ms, then {1000 * last:.2f} ms a call; "
        f"replayed {LONG / sum(replayed):.0f} calls/s of CPU"
    )
    assert sum(replayed) <= 2 * sum(live)
    return first, last


def test_a_long_trajectory_costs_the_same_for_each_call_and_replays_in_one_go():
    first, last = long_one(grows=False)
    assert last <= 2 * first


def test_a_conversation_that_grows_costs_no_more_than_what_is_sent_grows():
    """Each request carries the whole conversation, which has to be read: five times the messages
    in the last hundred calls. What would grow faster than that is looked for here."""
    first, last = long_one(grows=True)
    assert last <= 5 * first


# --- what replay must not lose


def finished(history):
    history.take(Finished(Status.COMPLETED, "", 1.0, 0.0))
    return samples_of(history, task="t", group="t", sample=0)


def text_of(sample) -> str:
    return bytes(token for token in sample.token_ids if token < 256).decode()


async def test_calls_at_once_of_which_some_were_lost_keep_places_of_their_own():
    gate = asyncio.Event()

    async def answer(request):
        message = bytes(token for token in request.prompt if token < 256)
        if b"slow" in message:
            await gate.wait()
        return f"re {request.seed}"

    subject = TrajectoryUnderTest(Oracle(answer))
    async with attempt(subject) as trajectory:
        slow = asyncio.create_task(answer_to(trajectory, ask(user("slow"))))
        await asyncio.sleep(0)
        quick = await answer_to(trajectory, ask(user("quick")))
        slow.cancel()
        await asyncio.wait([slow])
    gate.set()
    replies = [ask(user(text)) for text in ("slow", "quick", "third")]
    async with attempt(subject) as trajectory:
        answers = await asyncio.gather(*(answer_to(trajectory, reply) for reply in replies))
    async with attempt(subject) as trajectory:
        again = await asyncio.gather(*(answer_to(trajectory, reply) for reply in replies))
    assert answers[1] == quick
    assert again == answers
    assert len((await subject.history()).generations) == 3


async def test_a_reply_keeps_its_beginning_when_a_new_attempt_does_not_ask_for_it_again():
    subject = TrajectoryUnderTest(Oracle(lambda request: "same words"))
    async with attempt(subject) as trajectory:
        first = (await answer_to(trajectory, ask(*HELLO))).choices[0].message
        going_on = ask(*HELLO, first, user("go on"))
        rewritten = ask(*HELLO, assistant("a summary"), user("go on"))
        before = [await answer_to(trajectory, item) for item in (going_on, rewritten)]
    expected = [text_of(item) for item in finished(await subject.history())]
    async with attempt(subject) as trajectory:
        assert [await answer_to(trajectory, item) for item in (going_on, rewritten)] == before
        second = before[0].choices[0].message
        await answer_to(trajectory, ask(*going_on.messages, second, user("more")))
    longer, other = (text_of(item) for item in finished(await subject.history()))
    assert longer.startswith(expected[0])
    assert other == expected[1]


async def test_the_same_prompt_one_after_the_other_is_no_rewritten_past():
    subject = TrajectoryUnderTest()
    async with attempt(subject) as trajectory:
        for _ in range(3):
            await answer_to(trajectory, ask(*HELLO))
    history = await subject.history()
    assert [step.prefix_break for step in history.generations] == ["", "", ""]
    assert [step.base for step in history.generations] == ["", "", ""]


async def test_a_retry_among_identical_calls_is_told_its_own_answer_and_not_that_of_another():
    gate = asyncio.Event()

    async def answer(request):
        await gate.wait()
        return f"re {request.seed}"

    subject = TrajectoryUnderTest(Oracle(answer))
    async with attempt(subject) as trajectory:
        lost = await trajectory.subscribe(ask(*HELLO), wire="test")
        other = asyncio.create_task(answer_to(trajectory, ask(*HELLO)))
        await asyncio.sleep(0)
        lost.leave(delivered=False)
        retried = asyncio.create_task(answer_to(trajectory, ask(*HELLO), again=True))
        await asyncio.sleep(0)
        gate.set()
        answers = await asyncio.gather(retried, other)
    assert len({answer.id for answer in answers}) == 2
    assert len(subject.oracle.requests) == 2


async def test_a_conversation_that_was_looked_at_with_other_tools_still_goes_on_with_its_own():
    tool, other = (
        {"type": "function", "function": {"name": name, "parameters": {}}}
        for name in ("mine", "another")
    )
    # Written in a way in which no renderer writes it: rendered anew, it is not the same.
    odd = '<tool_call>{"arguments":  {}, "name":"mine"}</tool_call>'
    subject = TrajectoryUnderTest(Oracle(lambda request: odd))
    async with attempt(subject) as trajectory:
        first = (await answer_to(trajectory, ask(*HELLO, tools=(tool,)))).choices[0].message
    async with attempt(subject) as trajectory:
        await answer_to(trajectory, ask(*HELLO, tools=(tool,)))
        going_on = (*HELLO, first, user("go on"))
        await answer_to(trajectory, ask(*going_on, tools=(other,)))
        await answer_to(trajectory, ask(*going_on, user("more"), tools=(tool,)))
    _, changed, kept = (await subject.history()).generations
    assert changed.prefix_break == "the tools were changed"
    assert not kept.prefix_break


def test_a_judgement_replaces_only_what_it_has():
    end = End(reward=0.5, turns=3, limit="max_turns")
    assert end.with_judgement((None, 1.0)) == End(1.0, 3, "max_turns")
    assert end.with_judgement((2, None)) == End(0.5, 2, "max_turns")
    assert end.with_judgement(0.25) == End(0.25, 3, "max_turns")
    assert end.with_judgement((None, None)) == end
