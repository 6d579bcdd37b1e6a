"""A program without a rollout: two calls with urllib, and a word from the first in the second."""

import json
import os
import urllib.request

URL = f"{os.environ['OPENAI_BASE_URL']}/chat/completions"
HEADERS = {
    "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}",
    "Content-Type": "application/json",
}


def reply(messages: list[dict]) -> dict:
    body = json.dumps({"model": "policy", "messages": messages, "max_tokens": 8}).encode()
    with urllib.request.urlopen(urllib.request.Request(URL, body, HEADERS)) as answer:
        return json.load(answer)["choices"][0]["message"]


def main() -> None:
    with open(os.environ["HOLDFAST_TASK"]) as file:
        messages = list(json.load(file)["messages"])
    first = reply(messages)
    messages += [{"role": "assistant", "content": first["content"]}]
    reply([*messages, {"role": "user", "content": "And now?"}])


main()
