"""Reads the reply, the answer in it, and the task's ground truth, which a ready scorer compares."""

import re
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.engine.scoring.scorer import Score, shown
from holdfast.records.encoding.declared import NamedFields, check_fields
from holdfast.records.errors import UsageError
from holdfast.records.task import Task
from holdfast.records.view import TrajectoryView

MAX_ANSWER = 200
"""The most characters of an answer that are kept as the reason of a score."""


class ReadyScorer(Struct, frozen=True, metaclass=NamedFields):
    """The base class of ready scorers. Two scorers of the same class with equal settings are the
    same scorer."""

    def __post_init__(self) -> None:
        check_fields(self, f"{type(self).__name__}: ")
        for name in ("answer", "pattern"):
            check_pattern(f"{type(self).__name__}: {name}", getattr(self, name, ""))

    @property
    def identity(self) -> str:
        settings = {name: getattr(self, name) for name in self.__struct_fields__}
        return f"{type(self).__name__} {msgspec.json.encode(settings, order='sorted').decode()}"

    def __call__(self, judged: object) -> Any:
        """Returns the `Score` of a finished trajectory, or of a row of an evaluation.

        `CodeTests` returns an awaitable of the `Score`.
        """
        task = judged.task if isinstance(judged, TrajectoryView) else judged
        return self.score(reply_of(judged), self.wanted(getattr(task, "ground_truth", None)))

    def wanted(self, ground_truth: Any) -> Any:
        """Returns the ground truth in the form with which `score` compares a reply. Raises
        `UsageError` if the ground truth does not fit the scorer."""
        raise NotImplementedError

    def score(self, reply: str, wanted: Any) -> Any:
        """Returns the score of a reply."""
        raise NotImplementedError

    def check_task(self, task: Task) -> None:
        """Raises `UsageError`, before anything is sampled, if this scorer cannot score the task."""
        try:
            self.wanted(task.ground_truth)
        except UsageError as error:
            column = next((name for name in task.metadata if name in _WANTED), None)
            if task.ground_truth is None and column is not None:
                hint = f"; it has {column!r}: --columns ground_truth={column}"
                error.args = (
                    f"{error}{hint} (from Python: columns={{'ground_truth': {column!r}}})",
                )
            raise


_WANTED = ("answer", "target", "expected", "solution", "label", "reference")
"""Common names of the column with the ground truth."""


def check_pattern(name: str, pattern: str) -> "re.Pattern[str]":
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UsageError(f"{name} is not a regular expression: {error}") from None


def reply_of(judged: Any) -> str:
    """Returns the text of the assistant's last message."""
    if isinstance(judged, TrajectoryView):
        return judged.reply
    messages = getattr(judged, "messages", None)
    if not isinstance(messages, list | tuple):
        raise UsageError(
            "a ready scorer takes a finished trajectory, or a row: something with messages, not "
            f"{shown(judged)}"
        )
    replies = [each for each in messages if getattr(each, "role", "") == "assistant"]
    return _text(getattr(replies[-1], "content", "")) if replies else ""


def _text(content: Any) -> str:
    # The content consists of parts, and some may not be text.
    if isinstance(content, list | tuple):
        return "".join(str(getattr(part, "text", None) or "") for part in content)
    return content or ""


def answer_in(reply: str, pattern: str) -> str | None:
    """Returns the last match of `pattern`: its first group if it has one, or else the whole match.

    Returns None without a match. If `pattern` is empty, returns the whole reply.
    """
    if not pattern:
        return reply.strip()
    matches = list(re.finditer(pattern, reply))
    if not matches:
        return None
    last = matches[-1]
    return ((last[1] if last.re.groups else last[0]) or "").strip()


def texts_of(ground_truth: object, *, scorer: str) -> list[str]:
    """Returns the accepted texts: the ground truth, or each member if it is a list."""
    values = ground_truth if isinstance(ground_truth, list | tuple) else [ground_truth]
    if not values or not all(isinstance(each, str | int | float) for each in values):
        raise UsageError(
            f"{scorer} compares with a ground_truth that is a text, a number, or a list of them, "
            f"not {shown(ground_truth)}"
        )
    return [str(value).strip() for value in values]


def scored(is_right: bool | float, answer: str | None) -> Score:
    why = "none" if answer is None else answer
    why = why if len(why) <= MAX_ANSWER else f"{why[:MAX_ANSWER]}…"
    return Score(float(is_right), reasons={"answer": why})
