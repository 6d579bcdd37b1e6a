"""An agent without any library: it posts JSON with curl, or with urllib, also for a stream.

With --located it tells the model where it is and what is there, and leaves something there.
"""

import json
import os
import shutil
import subprocess
import sys
import urllib.request

from adding import CALLS, DESCRIPTION, PARAMETERS, add, crash, read_task, tell_pid

TOOL = {
    "type": "function",
    "function": {"name": "add", "description": DESCRIPTION, "parameters": PARAMETERS},
}
HEADERS = {
    "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}",
    "Content-Type": "application/json",
}
URL = f"{os.environ['OPENAI_BASE_URL']}/chat/completions"


def ask_model(body: dict, count: int) -> dict:
    """The reply's message."""
    if "--stream" in sys.argv:
        return streamed(body | {"stream": True}, count)
    return posted(json.dumps(body))["choices"][0]["message"]


def streamed(body: dict, count: int) -> dict:
    message: dict = {"role": "assistant", "content": ""}
    request = urllib.request.Request(URL, json.dumps(body).encode(), HEADERS)
    with urllib.request.urlopen(request) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            crash(count, "stream")
            for choice in json.loads(line[6:])["choices"]:
                merge(message, choice["delta"])
    return message


def merge(message: dict, delta: dict) -> None:
    message["content"] += delta.get("content") or ""
    for part in delta.get("tool_calls") or ():
        calls = message.setdefault("tool_calls", [])
        if part["index"] == len(calls):
            calls.append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        call = calls[part["index"]]
        call["id"] += part.get("id") or ""
        for name, value in part["function"].items():
            call["function"][name] += value or ""


def posted(data: str) -> dict:
    if "--urllib" in sys.argv or shutil.which("curl") is None:
        request = urllib.request.Request(URL, data.encode(), HEADERS)
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)
    arguments = [word for name, value in HEADERS.items() for word in ("-H", f"{name}: {value}")]
    command = ["curl", "--silent", "--show-error", "--fail", URL, *arguments, "--data-binary", "@-"]
    return json.loads(subprocess.run(command, input=data.encode(), capture_output=True).stdout)


def located() -> dict:
    text = f"in {os.getcwd()}, with {os.environ['HOLDFAST_TASK']}, are {os.listdir()}"
    with open("left", "w") as file:
        file.write(text)
    return {"role": "user", "content": text}


def main() -> None:
    tell_pid()
    messages = read_task()
    if "--located" in sys.argv:
        messages.append(located())
    for count in range(CALLS):
        crash(count)
        request = {"model": os.environ["HOLDFAST_MODEL"], "messages": messages, "tools": [TOOL]}
        message = ask_model(request, count)
        crash(count, "after")
        messages.append(message)
        if not message.get("tool_calls"):
            break
        for call in message["tool_calls"]:
            result = add(call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    print(f"done after {len(messages)} messages")


main()
