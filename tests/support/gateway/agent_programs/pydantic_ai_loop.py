"""An agent of pydantic-ai with a tool; `--responses` for responses, else chat completions."""

import os
import sys

from adding import crash, read_task, tell_pid
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel

KIND = OpenAIResponsesModel if "--responses" in sys.argv else OpenAIChatModel
agent = Agent(KIND(os.environ["HOLDFAST_MODEL"]), instructions="You add.")
counted = 0


@agent.tool_plain
def add(a: int, b: int) -> str:
    """Adds two numbers."""
    global counted
    counted += 1
    crash(counted)
    return str(a + b)


def main() -> None:
    tell_pid()
    print(agent.run_sync(read_task()[0]["content"]).output)


main()
