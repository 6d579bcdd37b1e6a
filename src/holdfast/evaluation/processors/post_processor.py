"""Checks of a row that was rolled out, before it is recorded: eval-protocol's post-processors."""

from abc import ABC, abstractmethod

from holdfast.evaluation.rows.row import EvaluationRow


class RolloutResultPostProcessor(ABC):
    """`process` raises ResponseQualityError for a row that is to be rolled out anew."""

    @abstractmethod
    def process(self, result: EvaluationRow) -> None: ...


class NoOpRolloutResultPostProcessor(RolloutResultPostProcessor):
    """Checks nothing."""

    def process(self, result: EvaluationRow) -> None:
        """Every row is good enough."""
