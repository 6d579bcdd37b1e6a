"""An agent whose tools are the gateway's: it lists them, shows them to its model, and posts what
the model calls. With `--ids` it says the id of each call; with `--twice` it makes each call twice.

Phases to die at: those of `adding.crash`, `tool` before a tool is called, `told` after its result.
"""

import json
import os
import sys
import urllib.request

from adding import CALLS, crash, read_task, tell_pid

URL = os.environ["HOLDFAST_URL"]


def post(path: str, body: object, **headers: str) -> dict:
    headers |= {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{URL}{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def use(call: dict, count: int) -> str:
    name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
    headers = {"Idempotency-Key": call["id"]} if "--ids" in sys.argv else {}
    crash(count, "tool")
    results = [post(f"/tools/{name}", arguments, **headers)]
    if "--twice" in sys.argv:
        results.append(post(f"/tools/{name}", arguments, **headers))
    crash(count, "told")
    return "; ".join(result["content"] for result in results)


def main() -> None:
    tell_pid()
    messages = read_task()
    with urllib.request.urlopen(f"{URL}/tools") as answer:
        tools = json.load(answer)["tools"]
    for count in range(CALLS):
        crash(count)
        request = {"model": os.environ["HOLDFAST_MODEL"], "messages": messages, "tools": tools}
        message = post("/v1/chat/completions", request)["choices"][0]["message"]
        crash(count, "after")
        messages.append(message)
        if not message.get("tool_calls"):
            break
        for call in message["tool_calls"]:
            result = use(call, count)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    print(f"done after {len(messages)} messages")


main()
