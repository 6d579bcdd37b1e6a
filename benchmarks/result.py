"""What a benchmark reports: a figure, the bound that it has to keep, and how it was measured."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    name: str
    value: float
    unit: str
    bound: str
    """Like `≥ 8` or `≤ 60`; "" for a figure that is only shown."""
    detail: str = ""

    @property
    def holds(self) -> bool | None:
        if not self.bound:
            return None
        sign, _, limit = self.bound.partition(" ")
        return self.value >= float(limit) if sign == "≥" else self.value <= float(limit)
