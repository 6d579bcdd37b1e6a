"""An agent on the openai library's responses, which sends back the items that it was given."""

import os
import sys

from adding import CALLS, DESCRIPTION, PARAMETERS, add, crash, read_task, tell_pid
from openai import OpenAI
from openai.types.responses import Response

STREAM = "--stream" in sys.argv
TOOL = {
    "type": "function",
    "name": "add",
    "description": DESCRIPTION,
    "parameters": PARAMETERS,
    "strict": False,
}


def said(client: OpenAI, items: list, count: int) -> Response:
    asked = {
        "model": os.environ["HOLDFAST_MODEL"],
        "instructions": "You add.",
        "input": items,
        "tools": [TOOL],
    }
    if not STREAM:
        return client.responses.create(**asked)
    whole = None
    for event in client.responses.create(**asked, stream=True):
        crash(count, "stream")
        if event.type == "response.completed":
            whole = event.response
    assert whole is not None, "a stream ends with the whole response"
    return whole


def main() -> None:
    tell_pid()
    client = OpenAI()
    items = [{"role": one["role"], "content": one["content"]} for one in read_task()]
    for count in range(CALLS):
        crash(count)
        reply = said(client, items, count)
        crash(count, "after")
        items += reply.output
        calls = [one for one in reply.output if one.type == "function_call"]
        if not calls:
            break
        for call in calls:
            result = add(call.arguments)
            items.append(
                {"type": "function_call_output", "call_id": call.call_id, "output": result}
            )
    print(f"done after {len(items)} items")


main()
