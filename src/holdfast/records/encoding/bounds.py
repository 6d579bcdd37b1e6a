"""Checks the bounds of numbers and texts that a record can hold."""

from holdfast.records.errors import UsageError

MAX_FLOAT32 = 3.4028234663852886e38
"""Larger numbers become infinite in a trainer's tensors."""


def check_whole(name: str, value: object, *, least: int) -> None:
    """Raises `UsageError` unless the value is an integer of at least `least` that a record can
    hold. Callers may ignore annotations, and a record with a wrong type could not be read again."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise UsageError(f"{name} must be a whole number, not {value!r:.100}")
    if not -(2**63) <= value < 2**64:
        raise UsageError(f"{name} must fit in 64 bits")
    if value < least:
        raise UsageError(f"{name} must be {least} or more, not {value}")


def check_number(name: str, value: object) -> None:
    """Raises `UsageError` unless the value is a number that a record can hold, whole or not."""
    if isinstance(value, float):
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise UsageError(f"{name} must be a number, not {value!r:.100}")
    check_whole(name, value, least=-(2**63))


def check_characters(name: str, text: str) -> None:
    """Raises `UsageError` for a lone surrogate, which Python allows in texts and no record can
    hold."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise UsageError(
            f"{name} {text!r:.100} has half of a character, a lone surrogate; write the whole or "
            "none"
        )
