"""Runs against the gym server."""

from holdfast.evaluation.rows.convert import row_of
from holdfast.records.message import system
from holdfast.records.task import Task
from holdfast.records.view import TrajectoryView
from support.engine.local_run import LocalRun
from support.paths import SUPPORT
from support.rollout.stage import Oracle, text_of

SCRIPT = SUPPORT / "evaluation" / "gym_server.py"


def say(number: int) -> str:
    return f'<tool_call>{{"name": "say", "arguments": {{"number": {number}}}}}</tool_call>'


def counting(request) -> str:
    """Says the next number, as long as it is asked."""
    occurrences = text_of(request.prompt).count("heard")
    return say(occurrences + 1)


def yard_of(answer=counting, **dataset_info: object) -> LocalRun:
    local = LocalRun(policy=Oracle(answer))
    message = {"environment_context": {"seed": 7}, **dataset_info}
    metadata = {"input_metadata": {"dataset_info": message}}
    local.tasks = [Task(id="a", messages=(system("Count."),), metadata=metadata)]
    return local


def rows_of(local: LocalRun):
    return [
        row_of(TrajectoryView(yard_key(local), local.tasks[0], history), local.spec)
        for history in local.histories().values()
    ]


def yard_key(local: LocalRun):
    from holdfast.records.trajectory import TrajectoryKey

    return TrajectoryKey("run", "a", 0)
