"""Builds the messages of a row, with the rewards that environments reported for them.

A task that was made from a row keeps, in its metadata under `HELD`, the parts of the row that a
task has no field for. This module puts these parts back. A message that answers an environment step
gets the step's reward as `control_plane_step`.
"""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from holdfast.engine.export.row_status import termination
from holdfast.engine.export.row_tokens import Fields
from holdfast.records.conversation import ReferencedMessage, referenced
from holdfast.records.history import History
from holdfast.records.step import (
    EnvironmentStepped,
    Generated,
    ToolIntent,
    ValueRecorded,
    path_order,
)
from holdfast.records.task import Task
from holdfast.records.trajectory import Status
from holdfast.records.view import TrajectoryView

HELD = "evaluation_row"
"""The key in a task's metadata for the parts of its original row that a task has no field for:
`messages` (whole messages, by their index), and `columns` whose names clash with other names."""

RETURNED = "returned_row"
"""The name of the recorded value that holds the row that a processor of rows gave back."""


def returned_of(view: TrajectoryView, *, but: str = "") -> Fields:
    """Returns the row that a processor of rows returned, without the field named `but`.

    Returns {} if the rollout returned no row.
    """
    step = view.history.steps.get("0")
    if not isinstance(step, ValueRecorded) or step.name != RETURNED:
        return {}
    returned = msgspec.msgpack.decode(step.value)
    row = returned.get("row") if isinstance(returned, dict) else None
    return {name: value for name, value in row.items() if name != but} if row else {}


def messages_of(view: TrajectoryView, last: Generated | None = None) -> list[Fields]:
    """Returns the messages of the conversation that ends with the reply `last`. Without `last`,
    returns the main conversation."""
    held = mapping_in(held_of(view.task), "messages")
    conversation = referenced(view.history, view.task, last)
    fields = [_fields(message, held) for message in conversation]
    steps = _steps(view.history, conversation, whole=last is None)
    for number, at in enumerate(sorted(steps)):
        step = steps[at].fields(number)
        if at == max(steps):
            step["termination_reason"] = _termination(view, terminated=steps[at].terminated)
        fields[at]["control_plane_step"] = step
    return fields


def messages_of_task(task: Task) -> list[Fields]:
    held = mapping_in(held_of(task), "messages")
    return [
        _fields(ReferencedMessage(message, f"task:{index}"), held)
        for index, message in enumerate(task.messages)
    ]


def held_of(task: Task) -> Mapping[str, object]:
    return mapping_in(task.metadata, HELD)


def _fields(message: ReferencedMessage, held: Mapping[str, object]) -> Fields:
    if held and message.reference.startswith("task:"):
        whole = mapping_in(held, message.reference.removeprefix("task:"))
        if whole:
            return dict(whole)
    return message.message.to_dict()


class _Earned(Struct, frozen=True):
    """The reward and the end flags that an environment reported for one step. If one message
    answers several steps, their rewards are added."""

    reward: float
    terminated: bool
    truncated: bool
    tool_calls: tuple[str, ...] = ()

    def __add__(self, other: "_Earned") -> "_Earned":
        return _Earned(
            self.reward + other.reward,
            self.terminated or other.terminated,
            self.truncated or other.truncated,
            self.tool_calls + other.tool_calls,
        )

    def fields(self, number: int) -> Fields:
        return {
            "step": number,
            "reward": self.reward,
            "terminated": self.terminated,
            "info": {"truncated": True} if self.truncated else {},
            "tool_calls": list(self.tool_calls),
            "num_tool_calls": len(self.tool_calls),
        }


def _steps(
    history: History, conversation: Sequence[ReferencedMessage], *, whole: bool
) -> dict[int, _Earned]:
    """Returns the rewards of steps by the index of the message that answers the step.

    A step may have no answering message, for example if the rollout described its result to the
    model in other words. With `whole`, such a step counts at the next message after it, so that no
    reward is missing.
    """
    answered = {
        entry.reference.partition(":")[2]: at
        for at, entry in enumerate(conversation)
        if entry.reference.startswith(("env:", "tool:"))
    }
    earned_by_step: dict[int, _Earned] = {}
    for step in history.in_order:
        if (earned := _step(history, step.path)) is None:
            continue
        at = answered.get(step.path)
        if at is None and whole and conversation:
            at = _next_after(conversation, step.path)
        if at is not None:
            earned_by_step[at] = earned_by_step[at] + earned if at in earned_by_step else earned
    return earned_by_step


def _next_after(conversation: Sequence[ReferencedMessage], path: str) -> int:
    """Returns the index of the message that gets the reward of a step without an answering message.
    This is the rollout's own message right after the last reply before the step. If no such message
    follows the reply, it is the reply itself. Without a reply before the step, returns 0."""
    replies = [
        at
        for at, entry in enumerate(conversation)
        if entry.reference.startswith("reply:")
        and path_order(entry.reference.partition(":")[2]) < path_order(path)
    ]
    if not replies:
        return 0
    following = replies[-1] + 1
    is_of_rollout = following < len(conversation) and not conversation[following].reference
    return following if is_of_rollout else replies[-1]


def _step(history: History, path: str) -> _Earned | None:
    """Returns the reward and the end flags of the step at `path`. Only actions in environments and
    tool calls with a reward have them. Returns None for all other steps, and for the opening of an
    environment."""
    step, result = history.steps.get(path), history.results.get(path)
    if isinstance(step, EnvironmentStepped) and not step.is_opening:
        return _Earned(step.reward, step.done, step.truncated)
    if isinstance(step, ToolIntent) and result is not None and result.reward is not None:
        call = f"{step.name}({step.arguments})"
        return _Earned(result.reward, result.done, result.truncated, (call,))
    return None


def _termination(view: TrajectoryView, *, terminated: bool) -> str:
    if view.status is Status.TRUNCATED:
        return termination(view)
    return "control_plane_signal" if terminated else "stop"


def mapping_in(holder: Mapping[str, object], name: str) -> Mapping[str, object]:
    """Returns the mapping with that name, or {} if there is none."""
    value = holder.get(name)
    return value if isinstance(value, Mapping) else {}
