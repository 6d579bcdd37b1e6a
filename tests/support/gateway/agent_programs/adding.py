"""What the agent programs share: their task, their one tool, and a way to die in time.

With CRASH_AT (a count of calls, or several: `0,2`) and CRASH_ONCE (a file, or the beginning of
several files' names) a program kills itself with SIGKILL, once at each of these counts; CRASH_PHASE
says at which point of the call.
"""

import json
import os
import signal

DESCRIPTION = "Adds two numbers."
PARAMETERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
CALLS = 8
"""More than any conversation here takes."""


def read_task() -> list[dict]:
    with open(os.environ["HOLDFAST_TASK"]) as file:
        return list(json.load(file)["messages"])


def add(arguments: str | dict) -> str:
    numbers = json.loads(arguments) if isinstance(arguments, str) else arguments
    return str(numbers["a"] + numbers["b"])


def crash(count: int, phase: str = "before") -> None:
    """Phases: `before` the call, `stream` at the first event of its answer, `after` the answer."""
    counts = os.environ.get("CRASH_AT", "").split(",")
    if str(count) not in counts or os.environ.get("CRASH_PHASE", "before") != phase:
        return
    flag = os.environ["CRASH_ONCE"] + (f"-{count}" if len(counts) > 1 else "")
    if not os.path.exists(flag):
        with open(flag, "w"):
            os.kill(os.getpid(), signal.SIGKILL)


def tell_pid() -> None:
    """For whoever wants to kill it from outside, or to see whether it still lives."""
    if "PID_FILE" in os.environ:
        with open(os.environ["PID_FILE"], "a") as file:
            file.write(f"{os.getpid()}\n")
