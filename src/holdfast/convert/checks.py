"""Checks that refuse data which a trainer would train wrongly."""

from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from holdfast.records.encoding.bounds import MAX_FLOAT32
from holdfast.records.errors import NotTrainable, UsageError
from holdfast.records.samples.sample import Sample
from holdfast.records.view import TrajectoryView

Item = TypeVar("Item")


def samples_for(function: str, samples: Iterable[Sample]) -> list[Sample]:
    """Returns the samples that a converter received, as a list. Raises `UsageError` for anything
    else."""
    wants = f"{function} wants a list of Samples ([s async for s in holdfast.samples(…)])"
    return listed(samples, wants, lambda item: isinstance(item, Sample))


def check_sample(function: str, sample: Sample) -> None:
    """Raises `UsageError` unless the value is one `Sample`."""
    if not isinstance(sample, Sample):
        raise UsageError(f"{function} wants one Sample, not {describe(sample)}")


def views_for(function: str, views: Iterable[TrajectoryView]) -> list[TrajectoryView]:
    """Returns the trajectories that a converter received. Raises `UsageError` for anything else."""
    read = "[t async for t in holdfast.trajectories(…)]"
    wants = f"{function} wants a list of TrajectoryViews ({read})"
    return listed(views, wants, lambda item: isinstance(item, TrajectoryView))


def rows_for(function: str, rows: Iterable[Item]) -> list[Item]:
    """Returns the EvaluationRows that a converter received, which may be dicts. Raises `UsageError`
    for anything else."""
    wants = f"{function} wants a list of EvaluationRows, or of dicts (json.loads of each line)"
    return listed(
        rows, wants, lambda item: isinstance(item, Mapping) or hasattr(item, "model_dump")
    )


@contextmanager
def read_back(wants: str, what: str) -> Iterator[None]:
    """Turns an error of the block into a `UsageError` of one line. The block reads `what` in a
    trainer's format. `wants` says which data would be valid."""
    try:
        yield
    except KeyError as error:
        raise UsageError(f"{wants}; {what} has no {error}") from error
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        raise UsageError(f"{wants}; the fields of {what} do not fit: {error}") from error


def listed(values: Iterable[Item], wants: str, is_one: Callable[[object], bool]) -> list[Item]:
    """Returns the items that a converter received, as a list. Raises `UsageError` unless `is_one`
    accepts each item."""
    if isinstance(values, AsyncIterable):
        raise UsageError(f"{wants}, not an async generator")
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
        raise UsageError(f"{wants}, not {describe(values)}")
    items = list(values)
    for number, item in enumerate(items):
        if not is_one(item):
            raise UsageError(f"{wants}; item {number} of the list is {describe(item)}")
    return items


def describe(value: object) -> str:
    """Describes a value for an error message: a text by its content, cut to 100 characters, and any
    other value by its type."""
    return f"{value!r:.100}" if isinstance(value, str) else f"of type {type(value).__name__}"


def narrowed(value: float, sample: Sample, *, trainer: str, what: str = "reward") -> float:
    """Returns a reward or an advantage that the trainer keeps as float32. Raises `NotTrainable` if
    it would be infinite there."""
    if abs(value) > MAX_FLOAT32:
        raise NotTrainable(
            f"task {sample.task!r}, sample {sample.sample}: its {what} {value:g} does not fit "
            f"float32, in which {trainer} has it; let the scorer return a smaller number"
        )
    return value


def check_temperature(samples: Iterable[Sample], temperature: float) -> None:
    """Raises `NotTrainable` if the trainer would compute logprobs at another temperature than the
    engine."""
    for sample in samples:
        for turn in sample.turns:
            if turn.trained and turn.temperature != temperature:
                raise NotTrainable(
                    f"task {sample.task!r}, sample {sample.sample}: sampled at temperature "
                    f"{turn.temperature:g}, and the trainer computes logprobs at {temperature:g}: "
                    "give both the same temperature"
                )


def check_logprobs(samples: Iterable[Sample]) -> None:
    """Raises `NotTrainable` if logprobs are known to belong to another distribution than the one
    that was sampled from."""
    for sample in samples:
        if sample.logprobs_mode.is_known_to_differ:
            raise NotTrainable(
                f"task {sample.task!r}, sample {sample.sample}: its logprobs are "
                f"{sample.logprobs_mode}, not those of the distribution that was sampled from; "
                "start vLLM with --logprobs-mode processed_logprobs, or sample at temperature 1 "
                "and top_p 1"
            )


def check_vocabulary(samples: Iterable[Sample], size: int) -> None:
    """Raises `NotTrainable` if a token is not in the vocabulary of the trainer's model."""
    for sample in samples:
        if sample.token_ids and (highest := max(sample.token_ids)) >= size:
            raise NotTrainable(
                f"task {sample.task!r}, sample {sample.sample}: it has the token {highest}, and "
                f"the trainer's model knows {size}: the rollouts were sampled with another "
                "tokenizer; give the engine and the trainer the same model"
            )


def check_divisible(rows: Sequence[object], by: int, *, trainer: str, of: str) -> None:
    if len(rows) % by:
        raise UsageError(
            f"{len(rows)} rows cannot be divided by {by}, as {trainer} wants ({of}): take another "
            "number of groups, or samples, for a step"
        )
