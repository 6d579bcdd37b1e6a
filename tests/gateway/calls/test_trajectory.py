"""An agent's calls as steps: recorded once, told again to whoever asks again, forked when it
diverges."""

import asyncio

import pytest

from holdfast.gateway.calls.trajectory import AgentTrajectory
from holdfast.gateway.limits import GatewayLimits
from holdfast.gateway.protocol.messages import RequestRejected
from holdfast.gateway.server import Gateway
from holdfast.gateway.wires.all import WIRES
from holdfast.policy.policy import Draft
from holdfast.records.encoding.tokens import pack_ids, pack_logprobs, unpack_ids
from holdfast.records.errors import BadRequest, ContextOverflow, EngineUnavailable
from holdfast.records.message import Message, Role, assistant, user
from holdfast.records.samples.sample import samples_of
from holdfast.records.step import Finished, VersionSpan
from holdfast.records.trajectory import Status
from support.gateway.connections import Connection
from support.gateway.counter import CHAT, Counter, exchange, opened, post, until
from support.gateway.streams import StreamedTrajectory
from support.gateway.trajectories import HELLO, answer_to, ask, attempt
from support.rollout.stage import Oracle, TrajectoryUnderTest, completion, text_of


async def two_turns(trajectory: AgentTrajectory, second: str = "and then?"):
    first = await answer_to(trajectory, ask(*HELLO))
    reply = first.choices[0].message
    last = await answer_to(trajectory, ask(*HELLO, reply, user(second)))
    return first, last


def perform(body):
    return asyncio.run(body())


def test_a_request_that_extends_an_earlier_one_goes_on_with_its_tokens():
    async def body():
        subject = TrajectoryUnderTest()
        async with attempt(subject) as trajectory:
            await two_turns(trajectory)
        history = await subject.history()
        first, second = history.generations
        assert second.base == first.path
        assert second.keep == len(first.delta) // 4 + len(first.ids) // 4
        assert not second.prefix_break
        history.take(Finished(Status.COMPLETED, "", 1.0, 0.0))
        (sample,) = samples_of(history, task="t", group="t", sample=0)
        assert sum(sample.loss_mask) == (len(first.ids) + len(second.ids)) // 4

    perform(body)


def test_a_new_attempt_is_given_back_its_past_and_nothing_is_sampled_again():
    async def body():
        subject = TrajectoryUnderTest()
        async with attempt(subject) as trajectory:
            before = await two_turns(trajectory)
        count = len(subject.oracle.requests)
        async with attempt(subject) as trajectory:
            again = await two_turns(trajectory)
        assert again == before
        assert len(subject.oracle.requests) == count == 2
        assert not (await subject.history()).forks

    perform(body)


def test_an_agent_that_diverges_goes_on_live_and_what_it_left_is_history():
    async def body():
        subject = TrajectoryUnderTest()
        async with attempt(subject) as trajectory:
            await two_turns(trajectory, "and then?")
        async with attempt(subject) as trajectory:
            first, last = await two_turns(trajectory, "something else")
        history = await subject.history()
        assert len(subject.oracle.requests) == 3
        assert len(history.generations) == 2
        assert len(history.forks) == 1
        assert history.generations[-1].message.text == last.choices[0].message.text
        async with attempt(subject) as trajectory:
            assert await two_turns(trajectory, "something else") == (first, last)
        assert len(subject.oracle.requests) == 3

    perform(body)


def test_three_identical_prompts_at_once_are_three_samples_also_on_replay():
    async def body():
        subject = TrajectoryUnderTest()
        ids = []
        for _ in range(2):
            async with attempt(subject) as trajectory:
                answers = await asyncio.gather(
                    *(answer_to(trajectory, ask(*HELLO)) for _ in range(3))
                )
            ids.append({answer.id for answer in answers})
        assert len(ids[0]) == 3
        assert ids[0] == ids[1]
        assert len(subject.oracle.requests) == 3
        assert len({request.seed for request in subject.oracle.requests}) == 3

    perform(body)


def test_a_client_that_went_away_and_asks_again_gets_the_same_answer():
    async def body():
        gate = asyncio.Event()

        async def slow(request):
            await gate.wait()
            return "late"

        subject = TrajectoryUnderTest(Oracle(slow))
        async with attempt(subject) as trajectory:
            gone = await trajectory.subscribe(ask(*HELLO), wire="test")
            gone.leave(delivered=False)
            waiting = asyncio.create_task(answer_to(trajectory, ask(*HELLO)))
            await asyncio.sleep(0)
            gate.set()
            answer = await waiting
            assert answer.choices[0].message.text == "late"
            assert len(subject.oracle.requests) == 1
            # And it says so itself, after the answer was sent.
            assert await answer_to(trajectory, ask(*HELLO), again=True) == answer
            named = await answer_to(trajectory, ask(user("x")), name="one")
            assert await answer_to(trajectory, ask(user("x")), name="one") == named
            with pytest.raises(RequestRejected, match="given to another request"):
                await answer_to(trajectory, ask(user("y")), name="one")
        assert len(subject.oracle.requests) == 2

    perform(body)


def test_a_rewritten_past_breaks_off_visibly_and_a_sub_agent_is_a_root_of_its_own():
    async def body():
        subject = TrajectoryUnderTest()
        async with attempt(subject) as trajectory:
            await two_turns(trajectory)
            edited = assistant("what I never said")
            await answer_to(trajectory, ask(*HELLO, edited, user("and then?")))
            await answer_to(trajectory, ask(HELLO[0], user("another task of the same kind")))
        *_, rewritten, other = (await subject.history()).generations
        assert rewritten.prefix_break == "earlier messages were changed"
        assert not other.prefix_break
        assert other.base == ""

    perform(body)


def test_what_clients_change_in_passing_is_the_same_conversation():
    async def body():
        call = '<tool_call>{"name": "add", "arguments": {"b": 2, "a": 1}}</tool_call>'
        subject = TrajectoryUnderTest(Oracle(lambda request: call))
        tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
        async with attempt(subject) as trajectory:
            first = await answer_to(trajectory, ask(*HELLO, tools=(tool,)))
            (choice,) = first.choices
            (made,) = choice.message.tool_calls
            assert choice.finish_reason == "tool_calls"
            from msgspec import structs

            echoed = structs.replace(
                choice.message,
                content=None,
                reasoning=None,
                tool_calls=(
                    structs.replace(
                        made, function=structs.replace(made.function, arguments='{"a":1,"b":2}')
                    ),
                ),
            )
            result = Message(Role.TOOL, "3", tool_call_id=made.id)
            await answer_to(trajectory, ask(*HELLO, echoed, result, tools=(tool,)))
        first_step, second = (await subject.history()).generations
        assert second.base == first_step.path
        assert not second.prefix_break

    perform(body)


def test_n_choices_are_n_samples_of_one_call():
    async def body():
        subject = TrajectoryUnderTest()
        async with attempt(subject) as trajectory:
            answer = await answer_to(trajectory, ask(*HELLO, n=3))
            assert len(answer.choices) == 3
            second = answer.choices[1].message
            await answer_to(trajectory, ask(*HELLO, second, user("go on")))
        history = await subject.history()
        assert [step.base for step in history.generations].count("") == 3
        assert history.generations[-1].base == "0.1.0"
        async with attempt(subject) as trajectory:
            assert await answer_to(trajectory, ask(*HELLO, n=3)) == answer

    perform(body)


def test_a_context_that_is_full_is_told_and_remembered_as_the_limit():
    async def body():
        subject = TrajectoryUnderTest(Oracle(lambda request: ContextOverflow("too long")))
        async with attempt(subject) as trajectory:
            with pytest.raises(ContextOverflow):
                await answer_to(trajectory, ask(*HELLO))
            assert trajectory.limit.reason == "context_overflow"
            assert not trajectory.broken.is_set()

    perform(body)


def test_an_engine_that_fails_breaks_the_attempt_and_no_more_is_sampled_in_it():
    async def body():
        subject = TrajectoryUnderTest(Oracle(lambda request: EngineUnavailable("gone")))
        async with attempt(subject) as trajectory:
            for _ in range(2):
                with pytest.raises(EngineUnavailable):
                    await answer_to(trajectory, ask(*HELLO))
            assert trajectory.broken.is_set()
            assert len(subject.oracle.requests) == 1

    perform(body)


def test_a_closed_attempt_answers_nobody():
    async def body():
        subject = TrajectoryUnderTest()
        async with attempt(subject) as trajectory:
            pass
        with pytest.raises(RequestRejected, match="this attempt is over"):
            await trajectory.subscribe(ask(*HELLO), wire="test")

    perform(body)


BEGINNING, REST = "Once upon a time", " there was an end."


def chat_request(*messages: dict, **more) -> dict:
    return {"model": "m", "messages": list(messages), **more}


def user_says(text: str) -> dict:
    return {"role": "user", "content": text}


def assistant_says(text: str) -> dict:
    return {"role": "assistant", "content": text}


class Storyteller:
    """A policy that thinks "one", then "two", and says yes, the second time when it is hurried. Its
    story stops after the beginning; asked for again, it goes on with what is known of it."""

    model, seconds_down = "oracle", 0.0

    def __init__(self) -> None:
        self.hurry, self.is_waiting = asyncio.Event(), False
        self.begun_with: list[str] = []
        self.answers = iter(("<think>\none\n</think>\n\nyes", "<think>\ntwo\n</think>\n\nyes"))

    async def sample(self, request):
        if "a story" not in text_of(request.prompt):
            answer = next(self.answers)
            if "two" in answer:
                self.is_waiting = True
                await self.hurry.wait()
            return completion(answer)
        known = bytes(unpack_ids(request.draft.ids).tolist()).decode()
        self.begun_with.append(known)
        if known or len(self.begun_with) > 1:
            return completion((known or "something else") + REST)
        ids = list(BEGINNING.encode())
        spans = (VersionSpan("v1", 0, len(ids)),)
        await request.partial.save(Draft(0, pack_ids(ids), pack_logprobs([-0.5] * len(ids)), spans))
        return await asyncio.Event().wait()


REWRITTEN = (user_says("q"), assistant_says("no, I did not"), user_says("a story"))

CONTINUED = (user_says("q"), assistant_says("yes"), user_says("a story"))


@pytest.mark.parametrize(
    ("other", "story"),
    [
        ((user_says("q"),), CONTINUED),
        ((user_says("q"), assistant_says("yes"), user_says("and?")), REWRITTEN),
        ((user_says("p"),), (user_says("p"), assistant_says("hm"), user_says("a story"))),
    ],
    ids=["an equal answer", "a conversation that is rewritten", "the first of its beginning"],
)
def test_what_was_told_is_kept_although_another_call_was_recorded_meanwhile(other, story):
    async def body():
        teller = Storyteller()
        async with Gateway(WIRES, limits=GatewayLimits(stream_tokens=4)) as gateway:
            counter = Counter(gateway, StreamedTrajectory(teller))
            async with counter.attempt() as (trajectory, binding):
                first = await exchange(
                    counter.port, post(CHAT, chat_request(user_says("q")), binding)
                )
                assert first.json["choices"][0]["message"]["content"] == "yes"
                raw = post(CHAT, chat_request(*other), binding)
                beside = asyncio.create_task(exchange(counter.port, raw))
                await until(lambda: teller.is_waiting)
                raw = post(CHAT, chat_request(*story, stream=True), binding)
                async with Connection(counter.port, raw) as connection:
                    await connection.wait_for("Once upon")
                    teller.hurry.set()
                    assert (await beside).status == 200
                    gateway.release(binding)
                    await trajectory.aclose()
            async with counter.attempt() as (_, binding):
                reply = await exchange(counter.port, post(CHAT, chat_request(*story), binding))
            return teller.begun_with, reply.json["choices"][0]["message"]["content"]

    begun_with, message = asyncio.run(body())
    assert begun_with == ["", BEGINNING]
    assert message == BEGINNING + REST


async def test_a_stream_that_ended_with_an_error_is_the_same_call_when_it_is_asked_again():
    """As it is without a stream; a second one would be sampled, and recorded as a second."""
    begun = asyncio.Event()

    async def slow(request):
        await begun.wait()
        return "no JSON at all"

    async with opened(slow, limits=GatewayLimits(ping_seconds=0.02)) as (counter, _, binding):
        wanted = chat_request(user_says("q"), stream=True, response_format={"type": "json_object"})
        first = await exchange(counter.port, post(CHAT, wanted, binding), begun=begun.set)
        assert first.status == 200
        assert b"response_format" in first.body
        second = await exchange(counter.port, post(CHAT, wanted, binding))
        assert (second.status, second.json["error"]["param"]) == (400, "response_format")
        assert len(counter.subject.oracle.requests) == 1


async def test_when_one_of_several_choices_fails_the_others_are_sampled_no_further():
    ended = asyncio.Event()

    async def answer(request):
        if request.id.endswith(".0.0"):
            raise BadRequest("no such schema")
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with opened(answer) as (counter, _, binding):
        wanted = chat_request(user_says("q"), n=3, response_format={"type": "json_object"})
        reply = await exchange(counter.port, post(CHAT, wanted, binding))
        assert reply.status == 400
        assert len(counter.subject.oracle.requests) == 3
        await asyncio.wait_for(ended.wait(), 60)
