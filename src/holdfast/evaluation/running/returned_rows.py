"""Which of the given rows each returned row is.

A function may return its rows in any order. A returned row is the given one with its `rollout_id`;
a row that the function made itself, without a `rollout_id`, is the given one with its `row_id`.
Results that are no rows (numbers, dicts, an EvaluateResult) name no row and go by their position.
"""

from collections.abc import Sequence
from typing import Any

from holdfast.engine.scoring.scorer import NotAScore, listed, shown
from holdfast.evaluation.rows.row import EvaluationRow

REMEDY = "return each of the rows that it was given once, in any order"


class GivenRows:
    """The rows of one call, under the ids that they had before the function could change them."""

    def __init__(self, rows: list[EvaluationRow]):
        self.rows = rows
        self._rollout_ids = [str(row.execution_metadata.rollout_id) for row in rows]
        self._by_rollout = {name: [place] for place, name in enumerate(self._rollout_ids)}
        self._by_row: dict[str | None, list[int]] = {}
        for place, row in enumerate(rows):
            self._by_row.setdefault(row.input_metadata.row_id, []).append(place)

    def check_own(self, result: object, called: str) -> None:
        """Refuses another rollout's row as the result for the only row that was given."""
        if _is_row(result) and _rollout_id(result) not in (None, *self._rollout_ids):
            raise NotAScore(
                f"{called} returned the row {_name(result)} for the row {self._rollout_ids[0]}; "
                "return the row that it was given"
            )

    def in_order(self, results: object, called: str) -> Sequence[object]:
        """The results, one for each given row and in the order of those. Raises `NotAScore`, which
        names the row, where a row is missing, was returned twice or was not given."""
        if not isinstance(results, Sequence) or not any(map(_is_row, results)):
            return listed(results, len(self.rows), called)
        by_place: dict[int, object] = {}
        for row in results:
            place = self._place(row, called)
            if place in by_place:
                name = self._rollout_ids[place]
                raise NotAScore(f"{called} returned the row {name} twice; {REMEDY}")
            by_place[place] = row
        for place, name in enumerate(self._rollout_ids):
            if place not in by_place:
                raise NotAScore(f"{called} did not return the row {name}; {REMEDY}")
        return [by_place[place] for place in range(len(self.rows))]

    def _place(self, row: object, called: str) -> int:
        if not _is_row(row):
            raise NotAScore(f"{called} returned {shown(row)} in a list of rows; {REMEDY}")
        rollout_id, row_id = _rollout_id(row), _row_id(row)
        if rollout_id is None:
            places = self._by_row.get(row_id, [])
        else:
            places = self._by_rollout.get(rollout_id, [])
        if len(places) > 1:
            raise NotAScore(
                f"{called} returned a row without a rollout_id, and {len(places)} rows have its "
                f"row_id {row_id!r}; {REMEDY}"
            )
        if not places:
            raise NotAScore(
                f"{called} returned the row {_name(row)}, which it was not given; {REMEDY}"
            )
        return places[0]


def _is_row(result: object) -> bool:
    """Also a row of eval-protocol's own class."""
    return hasattr(result, "evaluation_result")


def _name(row: object) -> str:
    return str(_rollout_id(row) or _row_id(row) or "without an id")


def _rollout_id(row: Any) -> str | None:
    """None where the function made the row: then the id is the field's default."""
    metadata = row.execution_metadata
    return metadata.rollout_id if "rollout_id" in metadata.model_fields_set else None


def _row_id(row: Any) -> str | None:
    found: str | None = row.input_metadata.row_id
    return found
