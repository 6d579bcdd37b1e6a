"""An agent of the OpenAI Agents SDK with a tool; `--chat` for chat completions, else responses."""

import asyncio
import os
import sys

from adding import CALLS, crash, read_task, tell_pid
from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
)
from openai import AsyncOpenAI

counted = 0


@function_tool
def add(a: int, b: int) -> str:
    """Adds two numbers."""
    global counted
    counted += 1
    crash(counted)
    return str(a + b)


async def main() -> None:
    tell_pid()
    kind = OpenAIChatCompletionsModel if "--chat" in sys.argv else OpenAIResponsesModel
    model = kind(os.environ["HOLDFAST_MODEL"], openai_client=AsyncOpenAI())
    agent = Agent(name="adder", instructions="You add.", tools=[add], model=model)
    task = [{"role": fields["role"], "content": fields["content"]} for fields in read_task()]
    config = RunConfig(tracing_disabled=True)
    result = await Runner.run(agent, task, max_turns=CALLS, run_config=config)
    print(result.final_output)


asyncio.run(main())
