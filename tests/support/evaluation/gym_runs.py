"""Runs against the gym server."""

from holdfast.evaluation.rows.convert import row_of
from holdfast.records.message import system
from holdfast.records.task import Task
from holdfast.records.view import TrajectoryView
from support.engine.yard import Yard
from support.paths import SUPPORT
from support.rollout.stage import Oracle, text_of

SCRIPT = SUPPORT / "evaluation" / "gym_server.py"


def say(number: int) -> str:
    return f'<tool_call>{{"name": "say", "arguments": {{"number": {number}}}}}</tool_call>'


def counting(request) -> str:
    """Says the next number, as long as it is asked."""
    said = text_of(request.prompt).count("heard")
    return say(said + 1)


def yard_of(answer=counting, **dataset_info: object) -> Yard:
    yard = Yard(policy=Oracle(answer))
    told = {"environment_context": {"seed": 7}, **dataset_info}
    metadata = {"input_metadata": {"dataset_info": told}}
    yard.tasks = [Task(id="a", messages=(system("Count."),), metadata=metadata)]
    return yard


def rows_of(yard: Yard):
    return [
        row_of(TrajectoryView(yard_key(yard), yard.tasks[0], history), yard.spec)
        for history in yard.histories().values()
    ]


def yard_key(yard: Yard):
    from holdfast.records.trajectory import TrajectoryKey

    return TrajectoryKey("run", "a", 0)
