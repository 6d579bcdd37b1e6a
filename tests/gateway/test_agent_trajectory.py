"""An agent's calls as steps: recorded once, told again to whoever asks again, forked when it
diverges."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from stage import Oracle, Play

from holdfast.gateway.calls.trajectory import AgentTrajectory
from holdfast.gateway.protocol.messages import Ask, RequestRejected
from holdfast.records.errors import ContextOverflow, EngineUnavailable
from holdfast.records.message import Message, Role, assistant, system, user
from holdfast.records.sample import samples_of
from holdfast.records.step import Finished
from holdfast.records.trajectory import Status

HELLO = (system("be brief"), user("hello"))


def ask(*messages: Message, **options) -> Ask:
    return Ask(model="some-model", messages=messages, **options)


@asynccontextmanager
async def attempt(play: Play):
    """One attempt of the agent, as a resumed process would have it."""
    session = await play.session()
    trajectory = AgentTrajectory(session)
    try:
        yield trajectory
        await session.cut_unvisited()
    finally:
        await trajectory.aclose()


async def told(trajectory: AgentTrajectory, asked: Ask, **options):
    hearing = await trajectory.hear(asked, wire="test", **options)
    try:
        return await hearing.answer()
    finally:
        hearing.leave(delivered=True)


async def two_turns(trajectory: AgentTrajectory, second: str = "and then?"):
    first = await told(trajectory, ask(*HELLO))
    reply = first.choices[0].message
    last = await told(trajectory, ask(*HELLO, reply, user(second)))
    return first, last


def perform(body):
    return asyncio.run(body())


def test_a_request_that_extends_an_earlier_one_goes_on_with_its_tokens():
    async def body():
        play = Play()
        async with attempt(play) as trajectory:
            await two_turns(trajectory)
        history = await play.history()
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
        play = Play()
        async with attempt(play) as trajectory:
            before = await two_turns(trajectory)
        asked = len(play.oracle.requests)
        async with attempt(play) as trajectory:
            again = await two_turns(trajectory)
        assert again == before
        assert len(play.oracle.requests) == asked == 2
        assert not (await play.history()).forks

    perform(body)


def test_an_agent_that_diverges_goes_on_live_and_what_it_left_is_history():
    async def body():
        play = Play()
        async with attempt(play) as trajectory:
            await two_turns(trajectory, "and then?")
        async with attempt(play) as trajectory:
            first, last = await two_turns(trajectory, "something else")
        history = await play.history()
        assert len(play.oracle.requests) == 3
        assert len(history.generations) == 2
        assert len(history.forks) == 1
        assert history.generations[-1].message.text == last.choices[0].message.text
        async with attempt(play) as trajectory:
            assert await two_turns(trajectory, "something else") == (first, last)
        assert len(play.oracle.requests) == 3

    perform(body)


def test_three_identical_prompts_at_once_are_three_samples_also_on_replay():
    async def body():
        play = Play()
        found = []
        for _ in range(2):
            async with attempt(play) as trajectory:
                answers = await asyncio.gather(*(told(trajectory, ask(*HELLO)) for _ in range(3)))
            found.append({answer.id for answer in answers})
        assert len(found[0]) == 3
        assert found[0] == found[1]
        assert len(play.oracle.requests) == 3
        assert len({request.seed for request in play.oracle.requests}) == 3

    perform(body)


def test_a_client_that_went_away_and_asks_again_gets_the_same_answer():
    async def body():
        gate = asyncio.Event()

        async def slow(request):
            await gate.wait()
            return "late"

        play = Play(Oracle(slow))
        async with attempt(play) as trajectory:
            gone = await trajectory.hear(ask(*HELLO), wire="test")
            gone.leave(delivered=False)
            waiting = asyncio.create_task(told(trajectory, ask(*HELLO)))
            await asyncio.sleep(0)
            gate.set()
            answer = await waiting
            assert answer.choices[0].message.text == "late"
            assert len(play.oracle.requests) == 1
            # And it says so itself, after the answer was sent.
            assert await told(trajectory, ask(*HELLO), again=True) == answer
            named = await told(trajectory, ask(user("x")), name="one")
            assert await told(trajectory, ask(user("x")), name="one") == named
            with pytest.raises(RequestRejected, match="given to another request"):
                await told(trajectory, ask(user("y")), name="one")
        assert len(play.oracle.requests) == 2

    perform(body)


def test_a_rewritten_past_breaks_off_visibly_and_a_sub_agent_is_a_root_of_its_own():
    async def body():
        play = Play()
        async with attempt(play) as trajectory:
            await two_turns(trajectory)
            edited = assistant("what I never said")
            await told(trajectory, ask(*HELLO, edited, user("and then?")))
            await told(trajectory, ask(HELLO[0], user("another task of the same kind")))
        *_, rewritten, other = (await play.history()).generations
        assert rewritten.prefix_break == "earlier messages were changed"
        assert not other.prefix_break
        assert other.base == ""

    perform(body)


def test_what_clients_change_in_passing_is_the_same_conversation():
    async def body():
        call = '<tool_call>{"name": "add", "arguments": {"b": 2, "a": 1}}</tool_call>'
        play = Play(Oracle(lambda request: call))
        tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
        async with attempt(play) as trajectory:
            first = await told(trajectory, ask(*HELLO, tools=(tool,)))
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
            await told(trajectory, ask(*HELLO, echoed, result, tools=(tool,)))
        first_step, second = (await play.history()).generations
        assert second.base == first_step.path
        assert not second.prefix_break

    perform(body)


def test_n_choices_are_n_samples_of_one_call():
    async def body():
        play = Play()
        async with attempt(play) as trajectory:
            answer = await told(trajectory, ask(*HELLO, n=3))
            assert len(answer.choices) == 3
            second = answer.choices[1].message
            await told(trajectory, ask(*HELLO, second, user("go on")))
        history = await play.history()
        assert [step.base for step in history.generations].count("") == 3
        assert history.generations[-1].base == "0.1.0"
        async with attempt(play) as trajectory:
            assert await told(trajectory, ask(*HELLO, n=3)) == answer

    perform(body)


def test_a_context_that_is_full_is_told_and_remembered_as_the_limit():
    async def body():
        play = Play(Oracle(lambda request: ContextOverflow("too long")))
        async with attempt(play) as trajectory:
            with pytest.raises(ContextOverflow):
                await told(trajectory, ask(*HELLO))
            assert trajectory.limit.reason == "context_overflow"
            assert not trajectory.broken.is_set()

    perform(body)


def test_an_engine_that_fails_breaks_the_attempt_and_no_more_is_sampled_in_it():
    async def body():
        play = Play(Oracle(lambda request: EngineUnavailable("gone")))
        async with attempt(play) as trajectory:
            for _ in range(2):
                with pytest.raises(EngineUnavailable):
                    await told(trajectory, ask(*HELLO))
            assert trajectory.broken.is_set()
            assert len(play.oracle.requests) == 1

    perform(body)


def test_a_closed_attempt_answers_nobody():
    async def body():
        play = Play()
        async with attempt(play) as trajectory:
            pass
        with pytest.raises(RequestRejected, match="this attempt is over"):
            await trajectory.hear(ask(*HELLO), wire="test")

    perform(body)
