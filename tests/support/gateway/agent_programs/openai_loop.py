"""A plain agent on the openai library: it adds with a tool until the model stops asking for it.

It knows nothing of Holdfast but its task's file.
"""

import os
import sys

from adding import CALLS, DESCRIPTION, PARAMETERS, add, crash, read_task, tell_pid
from openai import OpenAI

STREAM = "--stream" in sys.argv
TOOL = {
    "type": "function",
    "function": {"name": "add", "description": DESCRIPTION, "parameters": PARAMETERS},
}


def ask_model(client: OpenAI, messages: list, count: int) -> tuple[str, list]:
    """The reply's text and its calls, whole or from a stream."""
    request = {"model": os.environ["HOLDFAST_MODEL"], "messages": messages, "tools": [TOOL]}
    if not STREAM:
        message = client.chat.completions.create(**request).choices[0].message
        return message.content or "", [call.model_dump() for call in message.tool_calls or []]
    text, calls = "", {}
    for chunk in client.chat.completions.create(**request, stream=True):
        crash(count, "stream")
        for choice in chunk.choices:
            text += choice.delta.content or ""
            for part in choice.delta.tool_calls or []:
                empty = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
                call = calls.setdefault(part.index, empty)
                call["id"] += part.id or ""
                call["function"]["name"] += part.function.name or ""
                call["function"]["arguments"] += part.function.arguments or ""
    return text, list(calls.values())


def main() -> None:
    tell_pid()
    client = OpenAI()
    messages = read_task()
    for count in range(CALLS):
        crash(count)
        text, calls = ask_model(client, messages, count)
        crash(count, "after")
        message = {"role": "assistant", "content": text or None}
        if calls:
            message["tool_calls"] = calls
        messages.append(message)
        if not calls:
            break
        for call in calls:
            result = add(call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    print(f"done after {len(messages)} messages")


main()
