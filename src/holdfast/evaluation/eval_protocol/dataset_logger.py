"""DatasetLogger is eval-protocol's store of rows.

`evaluation_test(logger=…)` gets every scored row. The journal has all of them in any case, and the
default logger is the journal (`running.logged_rows`).
"""

from abc import ABC, abstractmethod
from typing import ClassVar

from holdfast import evaluation
from holdfast.evaluation.rows.row import EvaluationRow


class DatasetLogger(ABC):
    """A store of rows. Override `log` and `read`."""

    is_journal: ClassVar[bool] = False
    """Whether `log` writes to the journal. An evaluation stores its rows there in any case."""

    @abstractmethod
    def log(self, row: EvaluationRow) -> None:
        """Stores the row in its present state."""

    @abstractmethod
    def read(self, rollout_id: str | None = None) -> list[EvaluationRow]:
        """Returns the stored rows, or only the rows of one rollout."""


def journal_logger() -> DatasetLogger:
    """Returns the default logger, which stores rows in the journal. It is loaded only when this
    function is called."""
    return evaluation.default_logger
