"""DatasetLogger: eval-protocol's store of rows.

`evaluation_test(logger=…)` gets every scored row. The journal has all of them in any case: the
default logger is the journal (`running.logged_rows`).
"""

from abc import ABC, abstractmethod
from typing import ClassVar

from holdfast import evaluation
from holdfast.evaluation.rows.row import EvaluationRow


class DatasetLogger(ABC):
    """Override `log` and `read`."""

    is_journal: ClassVar[bool] = False
    """Whether it stores rows where an evaluation stores them anyway."""

    @abstractmethod
    def log(self, row: EvaluationRow) -> None:
        """Stores the row in its present state."""

    @abstractmethod
    def read(self, rollout_id: str | None = None) -> list[EvaluationRow]:
        """The stored rows, or those of one rollout."""


def journal_logger() -> DatasetLogger:
    """The default one. It runs evaluations, so that it is found only when it is used."""
    return evaluation.default_logger
