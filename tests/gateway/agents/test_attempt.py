"""Several attempts of one agent: old ones that live on, long ones, ones that take a short cut."""

import asyncio
import itertools
import time

import aiohttp

from holdfast.gateway.agents.subprocess import BlackBoxRolloutProcessor
from holdfast.records.message import assistant, user
from holdfast.records.samples.sample import samples_of
from holdfast.records.step import Finished
from holdfast.records.trajectory import Status
from support.engine.yard import Yard
from support.gateway.trajectories import HELLO, ask, attempt, told
from support.rollout.stage import Oracle, Play


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

    async def said(self, messages) -> dict:
        status, body = await self.post(messages)
        assert status == 200, body
        return body["choices"][0]["message"]


def words(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


# --- two attempts alive at once


class Zombie:
    """Its first attempt fails, but goes on asking with its key while the second one works."""

    def __init__(self) -> None:
        self.attempts = itertools.count(1)
        self.told: list[tuple[int, dict]] = []
        self.waiting: asyncio.Task | None = None
        self.client: Client | None = None
        self.arrived = asyncio.Event()

    async def __call__(self, binding, task):
        if next(self.attempts) == 1:
            self.client = Client(binding)
            await self.client.said([words("first")])
            self.waiting = asyncio.create_task(self.client.post([words("slow")]))
            await asyncio.wait_for(self.arrived.wait(), 60)
            raise RuntimeError("the agent is lost")
        async with Client(binding) as new:
            await new.said([words("first")])
            assert self.client is not None
            assert self.waiting is not None
            self.told.append(await self.waiting)
            self.told.append(await self.client.post([words("first")]))
            self.told.append(await self.client.post([words("something else")]))
            await new.said([words("second")])
            self.told.append(await self.client.post([words("second")]))
        async with self.client:
            return 1.0


def test_an_old_attempt_that_lives_on_is_refused_and_writes_nothing():
    zombie = Zombie()

    async def answer(request):
        if b"slow" in bytes(token for token in request.prompt if token < 256):
            zombie.arrived.set()
            await asyncio.sleep(3600)
        return f"re {request.seed}"

    yard = Yard(policy=Oracle(answer))
    yard.run(BlackBoxRolloutProcessor(zombie))
    history = yard.history()
    assert history.status.name == "COMPLETED", history.failures
    assert [status for status, _ in zombie.told] == [409] * 4
    assert all(body["error"]["code"] == "attempt_over" for _, body in zombie.told)
    assert len(history.generations) == 2
    # What the old one waited for is neither recorded nor asked for again.
    assert len(yard.policy.requests) == 3
    assert not history.forks


# --- long ones

LONG = 300


def long_one(*, grows: bool) -> tuple[float, float]:
    """CPU per call, the client's included, in the first and the last hundred of a long trajectory,
    which is then lost at its very end and replayed."""
    spent: list[list[float]] = []

    async def play(binding, task):
        messages, costs = [words("begin")], []
        spent.append(costs)
        async with Client(binding) as client:
            for number in range(LONG):
                began = time.process_time()
                said = await client.said(messages)
                costs.append(time.process_time() - began)
                messages = [*messages, said] if grows else messages[:1]
                messages.append(words(f"call {number}"))
        if len(spent) == 1:
            raise RuntimeError("lost at the very end")

    yard = Yard(policy=Oracle(lambda request: f"re {request.seed}"))
    yard.run(BlackBoxRolloutProcessor(play))
    history = yard.history()
    assert history.status.name == "COMPLETED", history.failures
    assert len(yard.policy.requests) == len(history.generations) == LONG
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


def test_calls_at_once_of_which_some_were_lost_keep_places_of_their_own():
    async def body():
        gate = asyncio.Event()

        async def answer(request):
            said = bytes(token for token in request.prompt if token < 256)
            if b"slow" in said:
                await gate.wait()
            return f"re {request.seed}"

        play = Play(Oracle(answer))
        async with attempt(play) as trajectory:
            slow = asyncio.create_task(told(trajectory, ask(user("slow"))))
            await asyncio.sleep(0)
            quick = await told(trajectory, ask(user("quick")))
            slow.cancel()
            await asyncio.wait([slow])
        gate.set()
        asked = [ask(user(text)) for text in ("slow", "quick", "third")]
        async with attempt(play) as trajectory:
            answers = await asyncio.gather(*(told(trajectory, one) for one in asked))
        async with attempt(play) as trajectory:
            again = await asyncio.gather(*(told(trajectory, one) for one in asked))
        assert answers[1] == quick
        assert again == answers
        assert len((await play.history()).generations) == 3

    asyncio.run(body())


def test_a_reply_keeps_its_beginning_when_a_new_attempt_does_not_ask_for_it_again():
    async def body():
        play = Play(Oracle(lambda request: "same words"))
        async with attempt(play) as trajectory:
            first = (await told(trajectory, ask(*HELLO))).choices[0].message
            going_on = ask(*HELLO, first, user("go on"))
            rewritten = ask(*HELLO, assistant("a summary"), user("go on"))
            before = [await told(trajectory, one) for one in (going_on, rewritten)]
        expected = [text_of(one) for one in finished(await play.history())]
        async with attempt(play) as trajectory:
            assert [await told(trajectory, one) for one in (going_on, rewritten)] == before
            second = before[0].choices[0].message
            await told(trajectory, ask(*going_on.messages, second, user("more")))
        longer, other = (text_of(one) for one in finished(await play.history()))
        assert longer.startswith(expected[0])
        assert other == expected[1]

    asyncio.run(body())


def test_the_same_prompt_one_after_the_other_is_no_rewritten_past():
    async def body():
        play = Play()
        async with attempt(play) as trajectory:
            for _ in range(3):
                await told(trajectory, ask(*HELLO))
        history = await play.history()
        assert [step.prefix_break for step in history.generations] == ["", "", ""]
        assert [step.base for step in history.generations] == ["", "", ""]

    asyncio.run(body())


def test_a_retry_among_identical_calls_is_told_its_own_answer_and_not_that_of_another():
    async def body():
        gate = asyncio.Event()

        async def answer(request):
            await gate.wait()
            return f"re {request.seed}"

        play = Play(Oracle(answer))
        async with attempt(play) as trajectory:
            lost = await trajectory.subscribe(ask(*HELLO), wire="test")
            other = asyncio.create_task(told(trajectory, ask(*HELLO)))
            await asyncio.sleep(0)
            lost.leave(delivered=False)
            retried = asyncio.create_task(told(trajectory, ask(*HELLO), again=True))
            await asyncio.sleep(0)
            gate.set()
            answers = await asyncio.gather(retried, other)
        assert len({one.id for one in answers}) == 2
        assert len(play.oracle.requests) == 2

    asyncio.run(body())


def test_a_conversation_that_was_looked_at_with_other_tools_still_goes_on_with_its_own():
    async def body():
        tool, other = (
            {"type": "function", "function": {"name": name, "parameters": {}}}
            for name in ("mine", "another")
        )
        # Written in a way in which no renderer writes it: rendered anew, it is not the same.
        odd = '<tool_call>{"arguments":  {}, "name":"mine"}</tool_call>'
        play = Play(Oracle(lambda request: odd))
        async with attempt(play) as trajectory:
            first = (await told(trajectory, ask(*HELLO, tools=(tool,)))).choices[0].message
        async with attempt(play) as trajectory:
            await told(trajectory, ask(*HELLO, tools=(tool,)))
            going_on = (*HELLO, first, user("go on"))
            await told(trajectory, ask(*going_on, tools=(other,)))
            await told(trajectory, ask(*going_on, user("more"), tools=(tool,)))
        _, changed, kept = (await play.history()).generations
        assert changed.prefix_break == "the tools were changed"
        assert not kept.prefix_break

    asyncio.run(body())
