"""The known name that a misspelled one is meant to be."""

import difflib
from collections.abc import Iterable

ALIKE = 0.6
"""How alike two names are before one is taken for the other; 1: the same."""


def nearest(name: str, known: Iterable[str], *, alike: float = ALIKE) -> str | None:
    """The one that is spelled nearly so; None where none is."""
    close_matches = difflib.get_close_matches(name, list(known), n=1, cutoff=alike)
    return close_matches[0] if close_matches else None
