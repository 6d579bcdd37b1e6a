"""An agent that writes down what it is told, at once: one line for each piece of a reply, and one
for each reply that was whole. It adds with a tool: through urllib, or with `--anthropic` through
the library; with `--whole` it asks for no stream."""

import json
import os
import sys
import urllib.request

from adding import CALLS, DESCRIPTION, PARAMETERS, add, crash, read_task, tell_pid

MODEL = os.environ["HOLDFAST_MODEL"]
FUNCTION = {"name": "add", "description": DESCRIPTION, "parameters": PARAMETERS}


def note(count: int, kind: str, text: str) -> None:
    line = json.dumps({"pid": os.getpid(), "call": count, kind: text})
    with open(os.environ["TOLD_FILE"], "a") as file:
        file.write(f"{line}\n")


def note_piece(count: int, text: str | None) -> str:
    """A piece of a reply has come."""
    if text:
        note(count, "piece", text)
        crash(count, "stream")
    return text or ""


def chat_turn(messages: list, count: int) -> bool:
    """Whether the model asked for the tool."""
    body = {"model": MODEL, "messages": messages, "stream": "--whole" not in sys.argv}
    body["tools"] = [{"type": "function", "function": FUNCTION}]
    headers = {
        "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}",
        "Content-Type": "application/json",
    }
    url = f"{os.environ['OPENAI_BASE_URL']}/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        if body["stream"]:
            message = streamed(answer, count)
        else:
            message = json.load(answer)["choices"][0]["message"]
    note(count, "whole", message["content"] or "")
    messages.append(message)
    for call in message.get("tool_calls", ()):
        result = add(call["function"]["arguments"])
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    return "tool_calls" in message


def streamed(answer, count: int) -> dict:
    text, calls, is_done = "", [], False
    for line in answer:
        is_done = is_done or line.startswith(b"data: [DONE]")
        chunk = json.loads(line[6:]) if line.startswith(b"data: {") else {"choices": ()}
        for choice in chunk["choices"]:
            text += note_piece(count, choice["delta"].get("content"))
            for part in choice["delta"].get("tool_calls", ()):
                if part["index"] == len(calls):
                    calls.append(part)
                else:
                    calls[-1]["function"]["arguments"] += part["function"]["arguments"]
    assert is_done, "the stream ended before its end"
    for call in calls:
        del call["index"]
    return {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}


def anthropic_turn(messages: list, count: int) -> bool:
    from anthropic import Anthropic

    tool = {"name": "add", "description": DESCRIPTION, "input_schema": PARAMETERS}
    request = {"model": MODEL, "messages": messages, "tools": [tool], "max_tokens": 400}
    with Anthropic() as client, client.messages.stream(**request) as stream:
        for text in stream.text_stream:
            note_piece(count, text)
        message = stream.get_final_message()
    note(count, "whole", "".join(item.text for item in message.content if item.type == "text"))
    messages.append({"role": "assistant", "content": message.content})
    results = [
        {"type": "tool_result", "tool_use_id": item.id, "content": add(item.input)}
        for item in message.content
        if item.type == "tool_use"
    ]
    if results:
        messages.append({"role": "user", "content": results})
    return bool(results)


def main() -> None:
    tell_pid()
    turn = anthropic_turn if "--anthropic" in sys.argv else chat_turn
    messages = read_task()
    for count in range(CALLS):
        crash(count)
        if not turn(messages, count):
            break
        crash(count, "after")


main()
