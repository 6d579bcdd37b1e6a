"""How long a model may think, as agents ask for it: a budget that the engine holds, or no time."""

import pytest

from holdfast.policy.policy import Completion
from holdfast.policy.rendering.messages_only import MessagesOnly
from holdfast.records.errors import Unsupported, UsageError
from holdfast.records.message import Message, Role
from holdfast.records.sampling import Sampling
from holdfast.rollout.replay import generate_step
from holdfast.rollout.replay.speaker import Speaker
from support.gateway.counter import CHAT, COMPLETIONS, MESSAGES, exchange, post
from support.gateway.libraries import HI, engine_behind, perform

ENABLED = {"type": "enabled", "budget_tokens": 2000}
ASKS = {
    "chat": (CHAT, {"messages": HI, "thinking_token_budget": 2000}),
    "alias": (CHAT, {"messages": HI, "thinking_budget": 2000}),
    "bare": (COMPLETIONS, {"prompt": [104, 105], "thinking_token_budget": 2000}),
    "anthropic": (MESSAGES, {"messages": HI, "max_tokens": 4000, "thinking": ENABLED}),
}


async def ask(counter, binding, wire: str, body: dict[str, object]):
    return await exchange(counter.port, post(wire, {"model": "m", **body}, binding))


@pytest.mark.parametrize("name", ASKS)
@pytest.mark.parametrize("dialect", ["vllm", "vllm-scale-out", "chat"])
def test_a_budget_reaches_the_engine_and_the_record(dialect, name):
    wire, sent = ASKS[name]
    if (dialect, wire) == ("chat", COMPLETIONS):
        pytest.skip("an engine that is sent messages has no bare prompts")

    async def body():
        async with engine_behind(dialect, thinking_budgets=True) as (engine, counter, binding):
            seen = len(engine.calls())
            reply = await ask(counter, binding, wire, sent)
            assert reply.status == 200, reply.body
            assert [call.thinking_token_budget for call in engine.calls()[seen:]] == [2000]
            (step,) = (await counter.subject.history()).generations
            assert step.sampling.thinking_token_budget == 2000
            # Another budget is another call, and none at all is one more.
            for budget in (100, None):
                other = {**HI_BODY, "thinking_token_budget": budget}
                assert (await ask(counter, binding, CHAT, other)).status == 200
            seen = [call.thinking_token_budget for call in engine.calls()[seen:]]
            assert seen == [2000, 100, None]

    perform(body)


HI_BODY = {"messages": HI}


@pytest.mark.parametrize("name", ASKS)
@pytest.mark.parametrize("dialect", ["sglang", "fireworks"])
def test_where_the_engine_cannot_hold_it_it_is_refused_with_the_way_out(dialect, name):
    wire, sent = ASKS[name]
    param = "thinking" if wire == MESSAGES else "thinking_token_budget"

    async def body():
        async with engine_behind(dialect) as (engine, counter, binding):
            seen = len(engine.calls())
            reply = await ask(counter, binding, wire, sent)
            assert reply.status == 400
            assert f"--ignore {param}" in reply.json["error"]["message"]
            assert len(engine.calls()) == seen

    perform(body)


@pytest.mark.parametrize("dialect", ["vllm", "chat"])
def test_what_the_engine_says_of_it_is_passed_on(dialect):
    async def body():
        async with engine_behind(dialect) as (_, counter, binding):
            reply = await ask(counter, binding, *ASKS["anthropic"])
            assert reply.status == 400
            message = reply.json["error"]["message"]
            assert "reasoning_config is not configured" in message
            assert "--ignore thinking" in message

    perform(body)


def test_two_names_with_two_values_are_refused():
    async def body():
        async with engine_behind(thinking_budgets=True) as (_, counter, binding):
            both = {"messages": HI, "thinking_budget": 1, "thinking_token_budget": 2}
            reply = await ask(counter, binding, CHAT, both)
            assert reply.status == 400
            assert reply.json["error"]["param"] == "thinking_token_budget"

    perform(body)


def test_no_thinking_is_an_effort_of_none_and_nothing_for_a_model_that_never_reasons():
    disabled = {"messages": HI, "max_tokens": 50, "thinking": {"type": "disabled"}}

    async def body():
        async with engine_behind("chat") as (engine, counter, binding):
            assert (await ask(counter, binding, MESSAGES, disabled)).status == 200
            assert [call.effort for call in engine.calls()] == ["none"]
        async with engine_behind("vllm") as (_, counter, binding):
            assert (await ask(counter, binding, MESSAGES, disabled)).status == 200

    perform(body)


def test_reasoning_that_goes_on_beyond_its_budget_is_no_answer():
    """A server that does not know the parameter ignores it."""

    class Bytes(MessagesOnly):
        def encode(self, text: str, *, whole: bool) -> bytes:
            return text.encode()

    thought = Message(Role.ASSISTANT, "yes", reasoning="hm " * 100)
    completion = Completion(b"", b"", "stop", (), "m", 1, 0.0, message=thought)
    turn = generate_step.GenerateStep("0", None, (), Sampling(thinking_token_budget=50), (), (), ())
    with pytest.raises(Unsupported, match="reasoned for about 300"):
        generate_step._message(Speaker(None, Bytes()), turn, completion)
    enough = generate_step.GenerateStep(
        "0", None, (), Sampling(thinking_token_budget=240), (), (), ()
    )
    assert generate_step._message(Speaker(None, Bytes()), enough, completion) is thought


@pytest.mark.parametrize("budget", [-1, 1.5, True, "9"])
def test_a_budget_is_a_whole_number(budget):
    with pytest.raises(UsageError, match="thinking_token_budget"):
        Sampling(thinking_token_budget=budget)
