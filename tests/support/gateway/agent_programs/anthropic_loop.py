"""A plain agent on the anthropic library, with a tool; `--stream` uses its message streams."""

import os
import sys

from adding import CALLS, DESCRIPTION, PARAMETERS, add, crash, read_task, tell_pid
from anthropic import Anthropic
from anthropic.types import Message

STREAM = "--stream" in sys.argv
TOOL = {"name": "add", "description": DESCRIPTION, "input_schema": PARAMETERS}


def ask_model(client: Anthropic, messages: list, count: int) -> Message:
    request = {
        "model": os.environ["HOLDFAST_MODEL"],
        "max_tokens": 300,
        "system": "You add.",
        "messages": messages,
        "tools": [TOOL],
    }
    if not STREAM:
        return client.messages.create(**request)
    with client.messages.stream(**request) as stream:
        for _ in stream:
            crash(count, "stream")
        return stream.get_final_message()


def main() -> None:
    tell_pid()
    client = Anthropic()
    messages = [{"role": fields["role"], "content": fields["content"]} for fields in read_task()]
    for count in range(CALLS):
        crash(count)
        reply = ask_model(client, messages, count)
        crash(count, "after")
        messages.append({"role": "assistant", "content": reply.content})
        if reply.stop_reason != "tool_use":
            break
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": add(block.input)}
            for block in reply.content
            if block.type == "tool_use"
        ]
        messages.append({"role": "user", "content": results})
    print(f"done after {len(messages)} messages")


main()
