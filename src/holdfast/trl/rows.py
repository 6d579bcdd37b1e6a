"""Turns the trainer's prompts into tasks, and its settings into the settings of a run."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import structs

from holdfast.records.errors import UsageError
from holdfast.records.sampling import Sampling
from holdfast.records.task import Task, as_tasks

Prompt = str | Sequence[Mapping[str, object]]


def prompt_key(prompt: Any) -> bytes:
    """Returns a key for a prompt. Equal prompts have equal keys, even if their messages have
    different types."""
    return hashlib.sha256(msgspec.json.encode(prompt, order="sorted")).digest()


class RowTasks:
    """The rows of a data set, found by their prompts. TRL passes only the prompt to a rollout
    function, but a scorer needs the other columns."""

    def __init__(self, rows: Any):
        self._rows: dict[bytes, Mapping[str, object]] = {}
        if not hasattr(rows, "__len__"):
            raise UsageError(
                "the data set is a stream (IterableDataset), in which no row can be found by its "
                "prompt: give one with a length, or rollouts(…, rows=…)"
            )
        for number in range(len(rows)):
            row = dict(rows[number])
            key = prompt_key(row.get("prompt"))
            known = self._rows.setdefault(key, row)
            if known is not row and known != row:
                raise UsageError(
                    f"row {number} of the data set has the prompt of another row, and other "
                    "columns: TRL gives rollouts the prompt alone, so that the two cannot be told "
                    "apart; make the prompts differ"
                )

    def task(self, prompt: Any, *, name: str) -> Task:
        """Returns the row with this prompt, as a task with that name."""
        row = self._rows.get(prompt_key(prompt))
        if row is None:
            raise UsageError(
                f"the trainer asks for a prompt that is none of its data set: {str(prompt)[:100]!r}"
            )
        (task,) = as_tasks([{**row, "id": name}])
        return task


def step_tasks(rows: RowTasks, prompts: Sequence[Any], *, step: str, size: int) -> list[Task]:
    """Returns a task for each group of `size` successive equal prompts. The name of a task consists
    of the step, its place in the step and its prompt, so that the same request has the same task
    names."""
    if len(prompts) % size:
        raise UsageError(
            f"{len(prompts)} prompts cannot be divided into groups of {size} (num_generations): "
            "give the trainer a batch that holds whole groups"
        )
    tasks = []
    for place in range(0, len(prompts), size):
        group = prompts[place : place + size]
        keys = {prompt_key(prompt) for prompt in group}
        if len(keys) > 1:
            raise UsageError(
                f"prompts {place} to {place + size - 1} of a batch are not of one group: "
                "num_generations is not the number that this trainer repeats prompts by"
            )
        name = f"{step}-{place // size}-{keys.pop().hex()[:12]}"
        tasks.append(rows.task(group[0], name=name))
    return tasks


def sampling_of(args: Any, own: Sampling | None) -> Sampling:
    """Returns the sampling settings: `own`, or the settings in the trainer's arguments if `own` is
    None. Raises `UsageError` if the temperature in `own` differs from the temperature at which the
    trainer computes logprobs."""
    if own is None:
        own = Sampling(
            max_tokens=args.max_completion_length or Sampling().max_tokens,
            top_p=args.top_p or 1.0,
            top_k=max(args.top_k or 0, 0),
            min_p=args.min_p or 0.0,
            repetition_penalty=args.repetition_penalty or 1.0,
            temperature=args.temperature,
            chat_template_kwargs=getattr(args, "chat_template_kwargs", None) or "",
        )
    if own.temperature != args.temperature:
        raise UsageError(
            f"rollouts sample at temperature {own.temperature:g}, and the trainer computes "
            f"logprobs at {args.temperature:g}: give GRPOConfig(temperature=…) the same"
        )
    return structs.replace(own)
