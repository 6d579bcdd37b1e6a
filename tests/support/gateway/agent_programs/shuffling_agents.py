"""An agent whose sub-agents add side by side, and of which nothing comes in the same order twice:
neither their calls, nor the members of what they show."""

import json
import os
import random
import threading
import time
import urllib.request

from adding import CALLS, DESCRIPTION, PARAMETERS, add, read_task, tell_pid

URL = f"{os.environ['HOLDFAST_URL']}/v1/chat/completions"
SUB_AGENTS = ("You add.", "You sum up.", "You count.")


def shuffled(value: object) -> object:
    if isinstance(value, dict):
        members = list(value.items())
        random.shuffle(members)
        return {name: shuffled(item) for name, item in members}
    return value


def ask(messages: list[dict]) -> dict:
    time.sleep(random.uniform(0, 0.02))
    function = {"name": "add", "description": DESCRIPTION, "parameters": PARAMETERS}
    tools = [shuffled({"type": "function", "function": function})]
    body = json.dumps({"model": os.environ["HOLDFAST_MODEL"], "messages": messages, "tools": tools})
    request = urllib.request.Request(URL, body.encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["choices"][0]["message"]


def work(system: str, task: list[dict], text: dict[str, str]) -> None:
    messages = [{"role": "system", "content": system}, *task]
    for _ in range(CALLS):
        message = ask(messages)
        messages.append(message)
        calls = message.get("tool_calls") or []
        if not calls:
            text[system] = message["content"]
            return
        for call in calls:
            content = add(call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})


def main() -> None:
    tell_pid()
    task, messages = read_task(), {}
    names = random.sample(SUB_AGENTS, len(SUB_AGENTS))
    threads = [threading.Thread(target=work, args=(name, task, messages)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(messages) < len(SUB_AGENTS):
        raise SystemExit("a sub-agent did not come to its end")


main()
