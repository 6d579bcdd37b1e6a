"""Turns reward functions that were written for verl or TRL into scorers.

A reference names them: `verl:FILE.py[:NAME]` (by default `compute_score`), or `trl:FILE.py:NAME`.
In this module, the name of such a function begins with its framework: `verl:compute_score`.

A function of TRL gets texts if the prompt is a text, and messages otherwise, as in TRL.
"""

import inspect
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from holdfast.engine.scoring.scorer import listed
from holdfast.records.conversation import main_turns
from holdfast.records.encoding.tokens import count
from holdfast.records.errors import UsageError
from holdfast.records.history import History, stream_of
from holdfast.records.message import Message, Role
from holdfast.records.task import Task
from holdfast.records.view import TrajectoryView

VERL, TRL = FRAMEWORKS = "verl", "trl"
COMPUTE_SCORE = "compute_score"


def split_framework(reference: str) -> tuple[str, str]:
    """Splits `verl:rewards.py` into `verl` and `rewards.py`. The framework is "" if the
    reference names none.
    """
    head, colon, rest = reference.partition(":")
    return (head, rest) if colon and head in FRAMEWORKS else ("", reference)


def scorer_named(module: ModuleType, name: str) -> Any:
    """Returns the attribute `name` of the module. If the name begins with a framework, returns that
    function wrapped as a scorer."""
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
        """Raises `UsageError` if the function cannot be called with the task's columns."""
        columns = self._columns(task)
        try:
            inspect.signature(self.function).bind(**columns, **self._sampled(task, "", [], []))
        except ValueError:
            return  # Some built-in callables have no signature.
        except TypeError as error:
            listed = ", ".join(name for name in columns if name != "prompts")
            raise UsageError(
                f"{self.__name__} as a reward function of {self.identity}: {error}; the row has "
                f"{listed} (name an argument after its column, and take the others as **columns)"
            ) from None

    def _arguments(self, trajectory: TrajectoryView) -> dict[str, object]:
        messages, task = trajectory.messages, trajectory.task
        replies = messages[_first_reply(messages, task) :]
        ids = completion_ids(trajectory.history)
        return self._columns(task) | self._sampled(task, trajectory.reply, replies, ids)

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
        prompt = task.messages[-1].text if task.prompt_is_text else _dicts(task.messages)
        return {**columns, "id": [task.id], "prompts": [prompt]}

    def _sampled(
        self, task: Task, reply: str, replies: list[Message], ids: list[int]
    ) -> dict[str, object]:
        if self.identity == VERL:
            return {"solution_str": reply}
        completion = reply if task.prompt_is_text else _dicts(replies)
        return {"completions": [completion], "completion_ids": [ids]}


def completion_ids(history: History) -> list[int]:
    """Returns the tokens of the main conversation after its prompt. They belong to the replies, and
    to the messages that the rollout and its tools added between the replies."""
    turns = main_turns(history)
    if not turns:
        return []
    prompt = len(stream_of(history, turns[0].path)) - count(turns[0].ids)
    return stream_of(history, turns[-1].path)[prompt:].tolist()


def _first_reply(messages: list[Message], task: Task) -> int:
    """Returns the index of the first reply. The messages before it are the prompt."""
    for number, message in enumerate(messages):
        if number >= len(task.messages) and message.role is Role.ASSISTANT:
            return number
    return len(messages)


def _dicts(messages: Any) -> list[Mapping[str, object]]:
    return [{**message.to_dict(), "content": message.content} for message in messages]
