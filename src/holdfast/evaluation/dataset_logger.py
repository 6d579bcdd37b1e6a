"""DatasetLogger: eval-protocol's name for what keeps rows; the default one is the journal.

`evaluation_test(logger=…)` is given every row that was judged, beside the journal, which has all of
them in any case.
"""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from holdfast.evaluation.rows.row import EvaluationRow

Found = TypeVar("Found")


class DatasetLogger(ABC):
    """Override both."""

    @abstractmethod
    def log(self, row: "EvaluationRow") -> None:
        """Keeps the row as it is now."""

    @abstractmethod
    def read(self, rollout_id: str | None = None) -> "list[EvaluationRow]":
        """The rows that were kept; of one rollout, where it is named."""


class JournalDatasetLogger(DatasetLogger):
    """Rows in a journal, each a run of its own called `logged.ID`, for `holdfast show` and
    `holdfast export --what rows`. What a processor logs in the middle of a row's rollout is not
    kept apart: the row that it gives back is recorded."""

    def __init__(self, journal: str | Path | None = None):
        """By default the journal of the evaluations that run in the current folder."""
        self._journal = None if journal is None else str(journal)

    def log(self, row: "EvaluationRow") -> None:
        from holdfast.evaluation.processors.row_processor import is_at_work

        if not is_at_work():
            _apart(self._logged(row.model_copy(deep=True)))

    def read(self, rollout_id: str | None = None) -> "list[EvaluationRow]":
        rows = _apart(self._rows())
        if rollout_id is None:
            return rows
        return [row for row in rows if row.execution_metadata.rollout_id == rollout_id]

    def _place(self) -> str:
        from holdfast.evaluation.definition.options import Options
        from holdfast.evaluation.running.session import EvaluationSession

        return EvaluationSession(Options(journal=self._journal)).journal()

    async def _logged(self, row: "EvaluationRow") -> None:
        from holdfast.evaluation.running.experiment import perform_async
        from holdfast.evaluation.running.logged_row import experiment_of

        await perform_async(experiment_of(row, self._place()))

    async def _rows(self) -> "list[EvaluationRow]":
        from holdfast.evaluation.running.logged_row import rows_in
        from holdfast.journal import open_journal

        journal = open_journal(self._place())
        try:
            return await rows_in(journal)
        finally:
            await journal.close()


def _apart(work: "Coroutine[Any, Any, Found]") -> Found:
    """In a thread of its own: whoever logs may be in an event loop, and cannot wait in it."""
    results: list[Found] = []
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
