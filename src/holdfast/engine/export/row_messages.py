"""The messages of a row, with what environments said about them.

A task that was made from a row holds, under `HELD`, what tasks have no place for; here it is put
back. A message that answers a step in an environment has the step's reward as
`control_plane_step`.
"""

from collections.abc import Mapping

import msgspec

from holdfast.engine.export.row_status import termination
from holdfast.engine.export.row_tokens import Fields
from holdfast.records.conversation import ReferencedMessage, referenced
from holdfast.records.history import History
from holdfast.records.message import Message
from holdfast.records.step import EnvironmentStepped, Generated, ToolIntent, ValueRecorded
from holdfast.records.task import Task
from holdfast.records.trajectory import Status
from holdfast.records.view import TrajectoryView

HELD = "evaluation_row"
"""In a task's metadata: `messages` (by their index, whole), and `columns` with names that clash."""

RETURNED = "returned_row"
"""The name of the value that a processor of rows recorded: the row that it gave back."""


def returned_of(view: TrajectoryView, *, but: str = "") -> Fields:
    """What such a processor says about the row, but for one field; {} for other rollouts."""
    step = view.history.steps.get("0")
    if not isinstance(step, ValueRecorded) or step.name != RETURNED:
        return {}
    found = msgspec.msgpack.decode(step.value)
    row = found.get("row") if isinstance(found, dict) else None
    return {name: value for name, value in row.items() if name != but} if row else {}


def messages_of(view: TrajectoryView, last: Generated | None = None) -> list[Fields]:
    """The conversation that ends with `last`; without it, the main one."""
    held = _mapping(held_of(view.task), "messages")
    fields: list[Fields] = []
    steps: list[Fields] = []
    for message in referenced(view.history, view.task, last):
        row = _fields(message, held)
        if message.reference and (step := _step(view.history, message.reference, len(steps))):
            steps.append(step)
            row["control_plane_step"] = step
        fields.append(row)
    if steps:
        steps[-1]["termination_reason"] = _termination(view, steps[-1])
    return fields


def messages_of_task(task: Task) -> list[Fields]:
    held = _mapping(held_of(task), "messages")
    return [
        _fields(ReferencedMessage(message, f"task:{index}"), held)
        for index, message in enumerate(task.messages)
    ]


def held_of(task: Task) -> Mapping[str, object]:
    return _mapping(task.metadata, HELD)


def message_fields(message: Message) -> Fields:
    return message.to_dict()


def _fields(message: ReferencedMessage, held: Mapping[str, object]) -> Fields:
    if held and message.reference.startswith("task:"):
        whole = _mapping(held, message.reference.removeprefix("task:"))
        if whole:
            return dict(whole)
    return message_fields(message.message)


def _step(history: History, reference: str, index: int) -> Fields | None:
    """What was earned by what the message answers; None where nothing can be."""
    kind, _, path = reference.partition(":")
    if kind not in ("env", "tool"):
        return None
    step, result = history.steps.get(path), history.results.get(path)
    if isinstance(step, EnvironmentStepped) and not step.is_opening:
        return _plane(index, step.reward, done=step.done, truncated=step.truncated)
    if isinstance(step, ToolIntent) and result is not None and result.reward is not None:
        plane = _plane(index, result.reward, done=result.done, truncated=result.truncated)
        return plane | {"tool_calls": [f"{step.name}({step.arguments})"], "num_tool_calls": 1}
    return None


def _plane(index: int, reward: float, *, done: bool, truncated: bool) -> Fields:
    return {
        "step": index,
        "reward": reward,
        "terminated": done,
        "info": {"truncated": True} if truncated else {},
        "tool_calls": [],
        "num_tool_calls": 0,
    }


def _termination(view: TrajectoryView, last: Fields) -> str:
    if view.status is Status.TRUNCATED:
        return termination(view)
    return "control_plane_signal" if last["terminated"] else "stop"


def _mapping(holder: Mapping[str, object], name: str) -> Mapping[str, object]:
    found = holder.get(name)
    return found if isinstance(found, Mapping) else {}
