"""An agent that works in its current folder with its own hands: each call of its tool adds a line
to `ledger`, and is answered with how many there are. It saves its conversation before it asks; with
`--resume` it goes on from there.
"""

import json
import os
import sys
import urllib.request
from pathlib import Path

from adding import CALLS, DESCRIPTION, PARAMETERS, crash, read_task, tell_pid

TOOL = {
    "type": "function",
    "function": {"name": "add", "description": DESCRIPTION, "parameters": PARAMETERS},
}
SAVED = Path("session.json")
LEDGER = Path("ledger")


def ask_model(messages: list[dict]) -> dict:
    body = {"model": os.environ["HOLDFAST_MODEL"], "messages": messages, "tools": [TOOL]}
    request = urllib.request.Request(
        f"{os.environ['OPENAI_BASE_URL']}/chat/completions",
        json.dumps(body).encode(),
        {
            "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}",
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]


def add(arguments: str) -> str:
    with LEDGER.open("a") as file:
        file.write(f"{arguments}\n")
    return f"{len(LEDGER.read_text().splitlines())} lines in {sorted(os.listdir())}"


def main() -> None:
    tell_pid()
    messages = json.loads(SAVED.read_text()) if "--resume" in sys.argv else read_task()
    for _ in range(CALLS):
        count = sum(message["role"] == "assistant" for message in messages)
        SAVED.write_text(json.dumps(messages))
        crash(count)
        message = ask_model(messages)
        crash(count, "after")
        messages.append(message)
        if not message.get("tool_calls"):
            break
        for call in message["tool_calls"]:
            result = add(call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        crash(count, "told")
    print("resumed" if os.environ.get("HOLDFAST_RESUMED") else "done")


main()
