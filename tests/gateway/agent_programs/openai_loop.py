"""A plain agent on the openai library: it adds with a tool until the model stops asking for it.

It knows nothing of Holdfast but its task's file. With CRASH_AT and CRASH_ONCE (a file) it kills
itself after so many calls, once.
"""

import json
import os
import signal
import sys

from openai import OpenAI

STREAM = "--stream" in sys.argv
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


def said(client: OpenAI, messages: list) -> tuple[str, list]:
    """The reply's text and its calls, whole or from a stream."""
    asked = {"model": os.environ["HOLDFAST_MODEL"], "messages": messages, "tools": [TOOL]}
    if not STREAM:
        message = client.chat.completions.create(**asked).choices[0].message
        return message.content or "", [call.model_dump() for call in message.tool_calls or []]
    text, calls = "", {}
    for chunk in client.chat.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            for part in choice.delta.tool_calls or []:
                empty = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
                call = calls.setdefault(part.index, empty)
                call["id"] += part.id or ""
                call["function"]["name"] += part.function.name or ""
                call["function"]["arguments"] += part.function.arguments or ""
    return text, list(calls.values())


def crash(count: int) -> None:
    flag = os.environ.get("CRASH_ONCE", "")
    if flag and count == int(os.environ["CRASH_AT"]) and not os.path.exists(flag):
        with open(flag, "w"):
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    with open(os.environ["HOLDFAST_TASK"]) as file:
        task = json.load(file)
    client = OpenAI()
    messages = list(task["messages"])
    for count in range(6):
        crash(count)
        text, calls = said(client, messages)
        message = {"role": "assistant", "content": text or None}
        if calls:
            message["tool_calls"] = calls
        messages.append(message)
        if not calls:
            break
        for call in calls:
            numbers = json.loads(call["function"]["arguments"])
            result = str(numbers["a"] + numbers["b"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    print(f"done after {len(messages)} messages")


main()
