"""An agent that asks for ever, and when nobody answers any more, neither ends nor lets itself be
asked to."""

import json
import os
import signal
import time
import urllib.error
import urllib.request

from adding import read_task, tell_pid


def main() -> None:
    tell_pid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    messages = read_task()
    headers = {"Content-Type": "application/json"}
    url = f"{os.environ['HOLDFAST_URL']}/v1/chat/completions"
    try:
        while True:
            body = json.dumps({"model": os.environ["HOLDFAST_MODEL"], "messages": messages})
            with urllib.request.urlopen(urllib.request.Request(url, body.encode(), headers)) as got:
                messages.append(json.load(got)["choices"][0]["message"])
            messages.append({"role": "user", "content": "more"})
    except OSError:
        time.sleep(600)


main()
