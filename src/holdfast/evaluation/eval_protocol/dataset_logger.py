"""DatasetLogger: eval-protocol's store of rows; the default one is the journal.

`evaluation_test(logger=…)` gets every scored row. The journal has all of them in any case.
"""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from holdfast.evaluation.rows.row import EvaluationRow

Result = TypeVar("Result")


class DatasetLogger(ABC):
    """Override `log` and `read`."""

    @abstractmethod
    def log(self, row: "EvaluationRow") -> None:
        """Stores the row in its present state."""

    @abstractmethod
    def read(self, rollout_id: str | None = None) -> "list[EvaluationRow]":
        """The stored rows, or those of one rollout."""


class JournalDatasetLogger(DatasetLogger):
    """Rows in a journal, each a run of its own with the name `logged.ID`, for `holdfast show` and
    `holdfast export --what rows`. Rows that a processor logs during their rollout are not stored:
    the row that it returns is."""

    def __init__(self, journal: str | Path | None = None):
        """By default the journal of the evaluations in the current folder."""
        self._journal = None if journal is None else str(journal)

    def log(self, row: "EvaluationRow") -> None:
        from holdfast.evaluation.eval_protocol.row_processor import is_at_work

        if not is_at_work():
            _run_in_thread(self._log(row.model_copy(deep=True)))

    def read(self, rollout_id: str | None = None) -> "list[EvaluationRow]":
        rows = _run_in_thread(self._rows())
        if rollout_id is None:
            return rows
        return [row for row in rows if row.execution_metadata.rollout_id == rollout_id]

    def _journal_path(self) -> str:
        from holdfast.evaluation.definition.options import Options
        from holdfast.evaluation.running.session import EvaluationSession

        return EvaluationSession(Options(journal=self._journal)).journal()

    async def _log(self, row: "EvaluationRow") -> None:
        from holdfast.evaluation.running.experiment import perform_async
        from holdfast.evaluation.running.logged_row import experiment_of

        await perform_async(experiment_of(row, self._journal_path()))

    async def _rows(self) -> "list[EvaluationRow]":
        from holdfast.evaluation.running.logged_row import rows_in
        from holdfast.journal import opened_journal

        async with opened_journal(self._journal_path()) as journal:
            return await rows_in(journal)


def _run_in_thread(work: "Coroutine[Any, Any, Result]") -> Result:
    """Runs the coroutine in a new thread: the caller's own thread may run an event loop."""
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(asyncio.run(work))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="dataset logger")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


default_logger: DatasetLogger = JournalDatasetLogger()
