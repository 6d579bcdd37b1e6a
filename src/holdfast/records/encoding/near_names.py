"""Finds the known name that a misspelled name probably means."""

import difflib
from collections.abc import Iterable

ALIKE = 0.6
"""The least similarity of two names; 1 means equal."""


def nearest(name: str, known: Iterable[str], *, alike: float = ALIKE) -> str | None:
    """Returns the known name with the most similar spelling; None if no name is similar."""
    close_matches = difflib.get_close_matches(name, list(known), n=1, cutoff=alike)
    return close_matches[0] if close_matches else None
