"""EvaluateResult is a scorer's result for a row, under eval-protocol's names.

Results can also be read like dicts (`result["score"]`), as in old scorers.
"""

from collections.abc import Iterator, KeysView
from typing import Any, ClassVar

from pydantic import Field

from holdfast.evaluation.rows.status import Open


class Readable(Open):
    """A model that can also be read like a dict of its fields."""

    aside: ClassVar[frozenset[str]] = frozenset()
    """Fields that iteration leaves out."""

    def __getitem__(self, key: str) -> Any:
        if key not in type(self).model_fields and key not in (self.model_extra or {}):
            raise KeyError(key)
        return getattr(self, key)

    def __contains__(self, key: object) -> bool:
        return key in type(self).model_fields

    def get(self, key: str, default: Any = None) -> Any:
        return getattr(self, key, default)

    def keys(self) -> KeysView[str]:
        return type(self).model_fields.keys()

    def values(self) -> list[Any]:
        return [getattr(self, key) for key in self.keys()]

    def items(self) -> list[tuple[str, Any]]:
        return [(key, getattr(self, key)) for key in self]

    def __iter__(self) -> Iterator[str]:  # type: ignore[override]
        return (key for key in self.keys() if key not in self.aside)


class MetricResult(Readable):
    """One part of a score."""

    aside = frozenset({"data"})

    is_score_valid: bool = True
    score: float
    reason: str
    data: dict[str, Any] = Field(default_factory=dict)


class StepOutput(Open):
    """The reward of one step of a trajectory."""

    step_index: int | str
    base_reward: float
    terminated: bool = False
    control_plane_info: dict[str, Any] | None = None
    metrics: dict[str, Any] = Field(default_factory=dict)
    reason: str | None = None


class EvaluateResult(Readable):
    """A score with its parts and reasons."""

    score: float
    is_score_valid: bool = True
    """A score that is not valid is not part of any mean."""
    reason: str | None = None
    metrics: dict[str, MetricResult] = Field(default_factory=dict)
    step_outputs: list[StepOutput] | None = None
    error: str | None = None
    trajectory_info: dict[str, Any] | None = None
    final_control_plane_info: dict[str, Any] | None = None
    agg_score: float | None = None
    standard_error: float | None = None
