"""The OpenAI Agents SDK against the responses wire, over a socket."""

import asyncio
import importlib
import json
from typing import Any

import openai
import pytest

from holdfast.gateway.protocol.messages import Answer, AnswerChoice, GenerationRequest
from holdfast.gateway.wires.responses.responses import OpenAIResponses
from holdfast.records.message import FunctionCall, Message, Role, ToolCall, system, user
from support.gateway.wire_server import WireHost

# A folder called agents would do for `agents` alone.
pytest.importorskip("agents.run")
agents: Any = importlib.import_module("agents")


def weather(city: str) -> str:
    """Tells the weather of a city."""
    return f"rain in {city}"


def call(identifier: str, city: str) -> ToolCall:
    return ToolCall(identifier, FunctionCall("weather", json.dumps({"city": city})))


FIRST, SECOND = "call_0123456789abcdef", "call_fedcba9876543210"
"""As the gateway names the calls of a generation."""
TURNS = (
    Message(
        Role.ASSISTANT,
        "I look.",
        (call(f"{FIRST}_0", "Oslo"), call(f"{FIRST}_1", "Rome")),
    ),
    Message(Role.ASSISTANT, "", (call(f"{SECOND}_0", "Bonn"),), reasoning="One more."),
    Message(Role.ASSISTANT, "It rains.", reasoning="Everywhere."),
)


def answer(ask: GenerationRequest) -> Answer:
    turn = sum(message.role is Role.ASSISTANT for message in ask.messages)
    reason = "tool_calls" if TURNS[turn].tool_calls else "stop"
    return Answer(f"a{turn}", 1700000000, ask.model, (AnswerChoice(TURNS[turn], reason),), 30, 20)


async def run(url: str, *, stream: bool) -> Any:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
        agent = agents.Agent(
            name="a",
            instructions="Be brief.",
            tools=[agents.function_tool(weather)],
            model=agents.OpenAIResponsesModel("m", openai_client=client),
        )
        config = agents.RunConfig(tracing_disabled=True)
        if not stream:
            return await agents.Runner.run(agent, "How is it?", run_config=config)
        running = agents.Runner.run_streamed(agent, "How is it?", run_config=config)
        async for _ in running.stream_events():
            pass
        return running


@pytest.mark.parametrize("stream", [False, True])
def test_an_agent_with_a_tool_sends_back_the_turns_that_it_was_told(stream: bool) -> None:
    async def main() -> tuple[Any, WireHost]:
        host = WireHost({"/v1/responses": OpenAIResponses()}, answer=answer)
        async with host as url:
            return await run(url, stream=stream), host

    made, host = asyncio.run(main())
    assert made.final_output == "It rains."
    assert made.context_wrapper.usage.total_tokens == 150
    results = [
        (f"{FIRST}_0", "Oslo"),
        (f"{FIRST}_1", "Rome"),
        (f"{SECOND}_0", "Bonn"),
    ]
    messages = [Message(Role.TOOL, f"rain in {city}", tool_call_id=item) for item, city in results]
    expected = (
        system("Be brief."),
        user("How is it?"),
        TURNS[0],
        *messages[:2],
        TURNS[1],
        messages[2],
    )
    assert host.asks[-1].messages == expected
    assert [ask.stream for ask in host.asks] == [stream] * 3
