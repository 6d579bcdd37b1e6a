"""An agent that does not trust its connection: it asks by hand, gives up soon, and asks again.

It has no library that would name its tries. With GIVE_UP_AT it leaves the first try of each of
these calls after GIVE_UP_SECONDS.
"""

import json
import os
import urllib.request

from adding import CALLS, DESCRIPTION, PARAMETERS, add, crash, read_task, tell_pid

TOOL = {
    "type": "function",
    "function": {"name": "add", "description": DESCRIPTION, "parameters": PARAMETERS},
}
GIVE_UP_AT = os.environ.get("GIVE_UP_AT", "").split(",")
SECONDS = float(os.environ.get("GIVE_UP_SECONDS", "0.2"))


def ask_model(messages: list, seconds: float) -> dict:
    body = {"model": os.environ["HOLDFAST_MODEL"], "messages": messages, "tools": [TOOL]}
    headers = {
        "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}",
        "Content-Type": "application/json",
    }
    url = f"{os.environ['OPENAI_BASE_URL']}/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=seconds) as answer:
        return json.load(answer)["choices"][0]["message"]


def patiently(messages: list, count: int) -> dict:
    if str(count) in GIVE_UP_AT:
        try:
            return ask_model(messages, SECONDS)
        except TimeoutError:
            print(f"call {count} takes too long: once more")
    return ask_model(messages, 60)


def main() -> None:
    tell_pid()
    messages = read_task()
    for count in range(CALLS):
        crash(count)
        message = patiently(messages, count)
        crash(count, "after")
        messages.append(message)
        if not message.get("tool_calls"):
            break
        for call in message["tool_calls"]:
            result = add(call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


main()
