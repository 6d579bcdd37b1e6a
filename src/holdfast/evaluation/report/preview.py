"""Makes previews, which show the beginnings of a trajectory's input, target and answer in lists."""

import msgspec
from msgspec import Struct

from holdfast.records.message import Role
from holdfast.records.view import TrajectoryView

MAX_PREVIEW = 160
"""The longest input, target or answer in a list, in characters."""


class Preview(Struct, frozen=True):
    """The beginnings of input, target and answer, each on one line."""

    input: str
    """The user's first message."""
    target: str
    answer: str


def preview_of(view: TrajectoryView) -> Preview:
    questions = [message.readable for message in view.task.messages if message.role is Role.USER]
    return Preview(
        input=_begin(questions[0] if questions else ""),
        target=_begin(target_text(view)),
        answer=_begin(view.reply),
    )


def target_text(view: TrajectoryView) -> str:
    """Returns the task's ground truth as text. A value that is not text is written as JSON."""
    truth = view.task.ground_truth
    if truth is None or isinstance(truth, str):
        return truth or ""
    return msgspec.json.encode(truth).decode()


def _begin(text: str) -> str:
    line = " ".join(text[: 4 * MAX_PREVIEW].split())
    return line if len(line) <= MAX_PREVIEW else f"{line[:MAX_PREVIEW]}…"
