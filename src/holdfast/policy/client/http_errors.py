"""Denied: an engine will not answer, however often it is asked; the status says why."""

from holdfast.policy.dialects.dialect import Kind
from holdfast.records.errors import PolicyRefused

_KEY_MISSING = (
    "it was sent no key: put it into HOLDFAST_API_KEY, or name the variable that holds it with "
    "--api-key-env (from Python: api_key)"
)
_KEY_REFUSED = (
    "it does not take the key that it was sent: that of HOLDFAST_API_KEY, or of the variable that "
    "--api-key-env names (from Python: api_key)"
)


class Denied(PolicyRefused):
    """Made by `denied`, for these statuses alone."""

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = status


def denied(status: int, said: str, *, dialect: Kind, has_key: bool) -> Denied | None:
    """What to do about a key, or which dialect was spoken, is added to what the engine said; None
    for a status that another request, or the same one later, may not meet."""
    if status in (404, 405):
        return Denied(f"{said} (asked in the dialect {dialect.value})", status)
    if status in (401, 403):
        return Denied(f"{said}; {_KEY_REFUSED if has_key else _KEY_MISSING}", status)
    return Denied(said, status) if 300 <= status < 400 else None
