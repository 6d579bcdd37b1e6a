"""The known name that a misspelled one probably means."""

import difflib
from collections.abc import Iterable

ALIKE = 0.6
"""How similar two names must be; 1 means equal."""


def nearest(name: str, known: Iterable[str], *, alike: float = ALIKE) -> str | None:
    """The known name with the most similar spelling; None if none is similar."""
    close_matches = difflib.get_close_matches(name, list(known), n=1, cutoff=alike)
    return close_matches[0] if close_matches else None
