"""An agent that edits its history: of earlier turns it keeps a summary only."""

import json
import os
import urllib.request

from adding import crash, read_task, tell_pid

TURNS = 4


def ask_model(messages: list) -> str:
    body = {"model": os.environ["HOLDFAST_MODEL"], "messages": messages}
    # The address alone says whose call it is.
    url = f"{os.environ['HOLDFAST_URL']}/v1/chat/completions"
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]


def main() -> None:
    tell_pid()
    task = read_task()
    messages = list(task)
    for count in range(TURNS):
        crash(count)
        lines = ask_model(messages)
        crash(count, "after")
        summary = f"so far {count + 1} turns, the last said {lines[:12]!r}"
        messages = [*task, {"role": "assistant", "content": summary}]
        messages.append({"role": "user", "content": "and now?"})


main()
