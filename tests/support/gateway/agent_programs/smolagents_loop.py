"""smolagents' ToolCallingAgent, as its documentation has it: it forces a call at every step."""

import os

from adding import add, read_task, tell_pid
from smolagents import OpenAIModel, ToolCallingAgent, tool


@tool
def plus(a: int, b: int) -> str:
    """Adds two numbers.

    Args:
        a: the first one
        b: the second one
    """
    return add(f'{{"a": {a}, "b": {b}}}')


tell_pid()
model = OpenAIModel(model_id=os.environ["HOLDFAST_MODEL"])
agent = ToolCallingAgent(tools=[plus], model=model, max_steps=6)
print(agent.run(read_task()[-1]["content"]))
