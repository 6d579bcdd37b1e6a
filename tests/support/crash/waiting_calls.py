"""A rollout that makes many payments at once, more than there are processes, or threads at first.

Each leaves a line in the folder that HOLDFAST_EFFECTS names when it begins, and goes on when there
is a file `go`. The driver is killed when KILL_AT of them have begun.
"""

import os
import signal
import time
from pathlib import Path

import holdfast
from holdfast.records.message import FunctionCall, ToolCall

PLACE = Path(os.environ["HOLDFAST_EFFECTS"])
CALLS = int(os.environ["CALLS"])


def _pay(number: int) -> str:
    with (PLACE / "begun").open("a") as file:
        file.write(f"{number}\n")
    while not (PLACE / "go").exists():
        if len((PLACE / "begun").read_text().splitlines()) >= int(os.environ["KILL_AT"]):
            os.kill(int(os.environ["DRIVER"]), signal.SIGKILL)
        time.sleep(0.01)
    return f"paid {number}"


@holdfast.tool(contract="at_most_once")
def in_process(number: int) -> str:
    """Pays."""
    return _pay(number)


@holdfast.tool(contract="at_most_once", isolated=True)
def isolated(number: int) -> str:
    """Pays."""
    return _pay(number)


async def rollout(t: holdfast.Rollout) -> float:
    # What an isolated tool's process is given is this one's environment when it is started.
    os.environ["DRIVER"] = str(os.getpid())
    t.add(*t.task.messages)
    await t.generate()
    first = int(t.task.id.rpartition("-")[2]) * CALLS
    name = t.task.id.partition("-")[0]
    calls = [
        ToolCall(f"c{number}", FunctionCall(name, f'{{"number": {first + number}}}'))
        for number in range(CALLS)
    ]
    await t.tools(calls, in_process, isolated)
    await t.generate()
    return 1.0
