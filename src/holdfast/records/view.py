"""A read-only view of a finished trajectory for scorers, and the speakers in the trajectory."""

from collections import Counter
from collections.abc import Collection
from functools import cached_property

from msgspec import Struct

from holdfast.records.conversation import conversation, shown_tools
from holdfast.records.history import History, Turn, turns
from holdfast.records.message import Message, Role
from holdfast.records.step import ToolIntent, ToolResult
from holdfast.records.task import Task
from holdfast.records.trajectory import Status, TrajectoryKey


class ToolUse(Struct, frozen=True):
    """A tool call that began, with its result; the result is None if the call has none."""

    intent: ToolIntent
    result: ToolResult | None


class TrajectoryView:
    """The task, the conversation, the calls and the end of a trajectory."""

    def __init__(self, key: TrajectoryKey, task: Task, history: History, *, id: int | None = None):  # noqa: A002
        self.id = id
        """The trajectory's number in the journal; None outside a journal."""
        self.key = key
        self.task = task
        self.history = history

    @property
    def status(self) -> Status:
        return self.history.status

    @property
    def reason(self) -> str:
        """Returns why the trajectory was truncated or failed; "" otherwise."""
        return self.history.finished.reason if self.history.finished else ""

    @property
    def reward(self) -> float | None:
        """Returns the reward of an earlier score, or the reward that the rollout returned."""
        return self.history.reward

    @cached_property
    def messages(self) -> list[Message]:
        return conversation(self.history, self.task)

    @cached_property
    def tools(self) -> list[dict[str, object]]:
        """Returns the schemas of the tools that the model was shown."""
        return shown_tools(self.history, self.task)

    @cached_property
    def turns(self) -> list[Turn]:
        return turns(self.history, self.task)

    @property
    def tool_uses(self) -> list[ToolUse]:
        return [
            ToolUse(step, self.history.results.get(step.path))
            for step in self.history.in_order
            if isinstance(step, ToolIntent)
        ]

    @property
    def step_rewards(self) -> list[float]:
        """Returns the reward of each step in an environment."""
        return self.history.step_rewards

    @property
    def turns_used(self) -> int:
        """Returns the number of turns that the rollout reported. Without a report, returns the
        number of the policy's replies."""
        turns = self.history.finished.turns_used if self.history.finished else None
        trained = [step for step in self.history.generations if step.trainable or not step.ids]
        return len(trained) if turns is None else turns

    @property
    def reply(self) -> str:
        """Returns the text of the assistant's last message; "" if there is no such message."""
        replies = [message for message in self.messages if message.role is Role.ASSISTANT]
        return replies[-1].text if replies else ""


# --- speakers


def other_speakers(view: TrajectoryView) -> set[str]:
    """Returns the paths of the replies that did not come from the policy. The policy is the model
    of the main conversation."""
    generations = view.history.generations
    main = [step for step in generations if "." not in step.path] or generations
    return {
        step.path
        for step in generations
        if step.model != main[0].model or (step.ids and not step.trainable)
    }


def spoken_elsewhere(view: TrajectoryView, others: Collection[str]) -> dict[str, str]:
    """Returns the texts of those replies of `others` that are outside the main conversation. Each
    text has the reply's path and model, such as `[3.0.1] judge`. A text that several of the replies
    have is given with the model alone."""
    generations = [
        step for step in view.history.generations if step.path in others and "." in step.path
    ]
    times = Counter(step.message.text for step in generations)
    return {
        text: step.model if times[text] > 1 else f"[{step.path}] {step.model}"
        for step in generations
        if (text := step.message.text)
    }
