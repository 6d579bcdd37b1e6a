"""Where Holdfast differs from eval-protocol in its examples, and why. `make interop` fails for any
other difference.

The reasons are those of docs/evaluations.md ("How do I move a test from eval-protocol?").
"""

from fnmatch import fnmatchcase
from typing import NamedTuple


class Known(NamedTuple):
    evaluation: str
    """`FILE::FUNCTION`; `*` stands for any part of it."""
    fields: tuple[str, ...]
    reason: str


KNOWN: tuple[Known, ...] = ()

NOT_COMPARED: dict[str, str] = {}
"""Evaluations that eval-protocol itself cannot run here: `FILE::FUNCTION` and the reason."""


def reason_for(evaluation: str, field: str) -> str | None:
    """Why the field may differ in this evaluation; None: it may not."""
    found = (known for known in KNOWN if fnmatchcase(evaluation, known.evaluation))
    return next((known.reason for known in found if field in known.fields), None)


def why_not_compared(evaluation: str) -> str | None:
    names = (name for name in NOT_COMPARED if fnmatchcase(evaluation, name))
    return next((NOT_COMPARED[name] for name in names), None)
