"""Turns reward functions that were written for verl or TRL into scorers.

A reference names them: `verl:FILE.py[:NAME]` (by default `compute_score`), `trl:FILE.py:NAME`, or
`trl-text:FILE.py:NAME` for a data set whose prompts are texts. In this module, the name of such a
function begins with its framework: `verl:compute_score`.
"""

import inspect
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from holdfast.engine.scoring.scorer import listed
from holdfast.records.encoding.tokens import unpack_ids
from holdfast.records.errors import UsageError
from holdfast.records.message import Message, Role
from holdfast.records.task import Task
from holdfast.records.view import TrajectoryView

VERL, TRL, TRL_TEXT = "verl", "trl", "trl-text"
COMPUTE_SCORE = "compute_score"


def split_framework(reference: str) -> tuple[str, str]:
    """Splits `verl:rewards.py` into `verl` and `rewards.py`. The framework is "" if the
    reference names none.
    """
    head, colon, rest = reference.partition(":")
    return (head, rest) if colon and head in (VERL, TRL, TRL_TEXT) else ("", reference)


def scorer_named(module: ModuleType, name: str) -> Any:
    """Returns the attribute of the module with that name. If the name begins with a framework,
    wraps the function as a scorer.
    """
    framework, plain = split_framework(name)
    function = getattr(module, plain)
    return RewardFunction(function, framework) if framework else function


class RewardFunction:
    """A scorer that calls a reward function as its framework does, for one trajectory at a time."""

    IS_ITS_IDENTITY = True

    def __init__(self, function: Any, framework: str):
        self.function = function
        self.identity = framework
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        if not callable(function) or isinstance(function, type):
            raise UsageError(f"--scorer {framework}: names a function, not {function!r:.100}")

    def __call__(self, trajectory: TrajectoryView) -> Any:
        result = self.function(**self._arguments(trajectory))
        return self._awaited(result) if inspect.isawaitable(result) else self._score(result)

    async def _awaited(self, result: Any) -> object:
        return self._score(await result)

    def _score(self, result: object) -> object:
        return result if self.identity == VERL else listed(result, 1, self.__name__)[0]

    def check_task(self, task: Task) -> None:
        """Raises `UsageError` if a task lacks columns that the function needs."""
        try:
            signature = inspect.signature(self.function)
        except ValueError:
            return  # Some built-in callables have none.
        try:
            signature.bind(**self._columns(task), **self._sampled("", [], b""))
        except TypeError as error:
            raise UsageError(
                f"task {task.id}: {self.__name__} as a reward function of {self.identity}: {error}"
            ) from None

    def _arguments(self, trajectory: TrajectoryView) -> dict[str, object]:
        messages = trajectory.messages
        last = trajectory.turns[-1].step.ids if trajectory.turns else b""
        replies = messages[_first_reply(messages, trajectory.task) :]
        return self._columns(trajectory.task) | self._sampled(trajectory.reply, replies, last)

    def _columns(self, task: Task) -> dict[str, object]:
        """Returns the arguments that come from the task."""
        if self.identity == VERL:
            return {
                "data_source": task.metadata.get("data_source", ""),
                "ground_truth": task.ground_truth,
                "extra_info": task.metadata.get("extra_info") or {},
            }
        columns: dict[str, object] = {name: [value] for name, value in task.metadata.items()}
        if task.ground_truth is not None:
            columns["ground_truth"] = [task.ground_truth]
        is_text = self.identity == TRL_TEXT
        prompt = task.messages[-1].text if is_text and task.messages else _dicts(task.messages)
        return {**columns, "prompts": [prompt]}

    def _sampled(self, reply: str, replies: list[Message], ids: bytes) -> dict[str, object]:
        if self.identity == VERL:
            return {"solution_str": reply}
        completion = reply if self.identity == TRL_TEXT else _dicts(replies)
        return {"completions": [completion], "completion_ids": [list(unpack_ids(ids))]}


def _first_reply(messages: list[Message], task: Task) -> int:
    """Returns the index of the first reply. The messages before it are the prompt."""
    for number, message in enumerate(messages):
        if number >= len(task.messages) and message.role is Role.ASSISTANT:
            return number
    return len(messages)


def _dicts(messages: Any) -> list[Mapping[str, object]]:
    return [{**message.to_dict(), "content": message.content} for message in messages]
