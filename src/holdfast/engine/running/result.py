"""RunResult is the return value of `holdfast.run`. It says how the run ended, and has the run's
trajectories and samples.

The data is read from the journal at its first use, and then kept.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.engine.export.nested import nested_message
from holdfast.engine.export.read import samples, trajectories
from holdfast.engine.report import RunReport, as_text
from holdfast.engine.running.engine import Ending
from holdfast.extras import needed_by
from holdfast.journal import opened_journal
from holdfast.journal.sql.journal import Journal
from holdfast.records.samples.sample import Sample
from holdfast.records.samples.summary import last_failure
from holdfast.records.view import TrajectoryView
from holdfast.rollout.threads.blocking import run_blocking

if TYPE_CHECKING:
    import datasets
    import pandas

_SCALARS = (str, bool, int, float)


class RunResult(tuple[Ending, RunReport]):
    """How a run ended, with its data. `ending, report = await holdfast.run(…)` works, too.

    `samples`, `trajectories` and `rewards` read the journal when they are first used, which takes a
    while in a large run. Inside a running loop, `await result.load()` reads the trajectories
    without blocking the loop. A journal in memory (`memory:`) lives as long as the result.
    """

    def __new__(cls, ending: Ending, report: RunReport, journal: Journal) -> "RunResult":
        return super().__new__(cls, (ending, report))

    def __init__(self, ending: Ending, report: RunReport, journal: Journal):
        self.ending = ending
        self.report = report
        self.name: str = report.run
        """The run's name: `holdfast show NAME`."""
        self._to_read = _to_read_again(journal)

    @property
    def stopped(self) -> str:
        """Why the run stopped early; "" if everything is settled. The same call continues the
        run.
        """
        return self.ending.stopped

    @property
    def failed(self) -> int:
        """How many trajectories failed for good: they have no reward and no samples."""
        return self.report.permanent_failures

    @cached_property
    def trajectories(self) -> list[TrajectoryView]:
        """All trajectories of the run, by task and sample."""
        return run_blocking(self._load_trajectories)

    @cached_property
    def samples(self) -> list[Sample]:
        """The samples of settled and kept groups, to train on.

        Raises `NotTrainable` if their logprobs belong to another distribution than the one that was
        sampled from.
        """
        return run_blocking(self._load_samples)

    @property
    def rewards(self) -> list[float | None]:
        """The reward of each trajectory; None if it failed or has no valid score."""
        return [view.reward for view in self.trajectories]

    @property
    def table(self) -> list[dict[str, object]]:
        """One row for each trajectory. Each metric has its own column (`metrics.NAME`)."""
        scored = [view.history.scored for view in self.trajectories]
        metrics = {name for score in scored if score is not None for name in score.metrics}
        return [_row(view, sorted(metrics)) for view in self.trajectories]

    def to_pandas(self) -> "pandas.DataFrame":
        """Returns the table as a DataFrame. Needs pandas."""
        with needed_by("to_pandas", extra="pandas"):
            import pandas
        return pandas.DataFrame(self.table)

    def to_dataset(self) -> "datasets.Dataset":
        """Returns the table as a data set of Hugging Face's `datasets`, with nested messages.
        Needs datasets.
        """
        with needed_by("to_dataset", extra="datasets"):
            import datasets
        return datasets.Dataset.from_list(_uniform(self.table))

    async def load(self) -> "RunResult":
        """Reads `trajectories` without blocking the loop. Returns the result itself."""
        if "trajectories" not in self.__dict__:
            self.__dict__["trajectories"] = await self._load_trajectories()
        return self

    async def _load_trajectories(self) -> list[TrajectoryView]:
        async with self._to_read() as journal:
            return [view async for view in trajectories(journal, self.name)]

    async def _load_samples(self) -> list[Sample]:
        async with self._to_read() as journal:
            return [sample async for sample in samples(journal, self.name)]

    def __repr__(self) -> str:
        return as_text(self.report)


def _to_read_again(journal: Any) -> Callable[[], AbstractAsyncContextManager[Journal]]:
    """Returns a function that opens the journal again, because the original may be closed or belong
    to another loop by then. The function returns a journal in memory as it is."""
    path, address = getattr(journal, "path", None), getattr(journal, "address", None)
    if isinstance(path, str | Path):
        return partial(opened_journal, Path(path).absolute(), read_only=True)
    if address is not None:  # The address of a server.
        make: Callable[..., AbstractAsyncContextManager[Journal]] = type(journal)
        return partial(make, address, read_only=True)
    return lambda: nullcontext(journal)


def _row(view: TrajectoryView, metrics: Sequence[str]) -> dict[str, object]:
    scored = view.history.scored
    mapping = dict(scored.metrics) if scored else {}
    failure = last_failure(view.history)
    return {
        "task": view.key.task,
        "sample": view.key.sample,
        "status": view.status.name,
        "reason": view.reason,
        "reward": view.reward,
        **{f"metrics.{name}": mapping.get(name) for name in metrics},
        "reply": view.reply,
        "ground_truth": view.task.ground_truth,
        "metadata": view.task.metadata,
        "turns": len(view.history.generations),
        "sampled_tokens": view.history.sampled_tokens,
        "error": failure.text if failure and not view.status.is_outcome else "",
        "messages": [message.to_dict() for message in view.messages],
    }


def _uniform(rows: list[dict[str, object]]) -> list[dict[str, Any]]:
    """Gives each column one type: values of unknown shape become JSON text, and messages have
    all fields.
    """
    kinds = {type(row["ground_truth"]) for row in rows if row["ground_truth"] is not None}
    is_plain = len(kinds) <= 1 and kinds <= set(_SCALARS)
    return [
        {
            **row,
            "ground_truth": row["ground_truth"] if is_plain else _json(row["ground_truth"]),
            "metadata": _json(row["metadata"]),
            "messages": [nested_message(message) for message in row["messages"]],  # type: ignore[attr-defined]
        }
        for row in rows
    ]


def _json(value: object) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()
