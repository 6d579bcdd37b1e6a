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


def ask_model(client: OpenAI, items: list, count: int) -> Response:
    request = {
        "model": os.environ["HOLDFAST_MODEL"],
        "instructions": "You add.",
        "input": items,
        "tools": [TOOL],
    }
    if not STREAM:
        return client.responses.create(**request)
    whole = None
    for event in client.responses.create(**request, stream=True):
        crash(count, "stream")
        if event.type == "response.completed":
            whole = event.response
    assert whole is not None, "a stream ends with the whole response"
    return whole


def main() -> None:
    tell_pid()
    client = OpenAI()
    items = [{"role": fields["role"], "content": fields["content"]} for fields in read_task()]
    for count in range(CALLS):
        crash(count)
        reply = ask_model(client, items, count)
        crash(count, "after")
        items += reply.output
        calls = [item for item in reply.output if item.type == "function_call"]
        if not calls:
            break
        for call in calls:
            result = add(call.arguments)
            items.append(
                {"type": "function_call_output", "call_id": call.call_id, "output": result}
            )
    print(f"done after {len(items)} items")


main()
