"""An agent that asks the same three times at once, and sends sub-agents out with other prompts.

Its last word is on what they all said, in the order in which it sent them out.
"""

import asyncio
import os

from adding import crash, read_task, tell_pid
from openai import AsyncOpenAI

MODEL = os.environ["HOLDFAST_MODEL"]
SUB_AGENTS = ("You find facts.", "You look for mistakes.")
TURNS = 2


async def ask(client: AsyncOpenAI, messages: list) -> str:
    answer = await client.chat.completions.create(model=MODEL, messages=messages)
    return answer.choices[0].message.content or ""


async def sub_agent(client: AsyncOpenAI, system: str, messages: list) -> str:
    messages = [{"role": "system", "content": system}, *messages]
    for turn in range(TURNS):
        answer = await ask(client, messages)
        messages.append({"role": "assistant", "content": answer})
        messages.append({"role": "user", "content": f"go on, {turn}"})
    return answer


async def main() -> None:
    tell_pid()
    task = read_task()
    async with AsyncOpenAI() as client:
        crash(0)
        async with asyncio.TaskGroup() as group:
            drafts = [group.create_task(ask(client, task)) for _ in range(3)]
        crash(1)
        async with asyncio.TaskGroup() as group:
            helpers = [group.create_task(sub_agent(client, item, task)) for item in SUB_AGENTS]
        crash(2)
        # The order of identical drafts is a matter of timing: they are sorted.
        result = [
            *sorted(draft.result() for draft in drafts),
            *(helper.result() for helper in helpers),
        ]
        last = {"role": "user", "content": "Choose: " + "; ".join(result)}
        await ask(client, [{"role": "system", "content": "You judge."}, last])
        crash(3)


asyncio.run(main())
