"""What a number or a text has to be so that a record can hold it."""

from holdfast.records.errors import UsageError

MAX_FLOAT32 = 3.4028234663852886e38
"""What is larger becomes infinite in the tensors of a trainer."""


def check_whole(name: str, value: object, *, least: int) -> None:
    """Raises unless it is an integer from `least` on that a record can hold.

    Annotations bind nobody who calls us, and what is recorded with another type is not read again.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise UsageError(f"{name} must be a whole number, not {value!r:.100}")
    if not -(2**63) <= value < 2**64:
        raise UsageError(f"{name} must fit in 64 bits")
    if value < least:
        raise UsageError(f"{name} must be {least} or more, not {value}")


def check_number(name: str, value: object) -> None:
    """The same for a number, whole or not."""
    if isinstance(value, float):
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise UsageError(f"{name} must be a number, not {value!r:.100}")
    check_whole(name, value, least=-(2**63))


def check_characters(name: str, text: str) -> None:
    """Raises for half of a character, which Python has and no record can hold."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise UsageError(
            f"{name} {text!r:.100} has half of a character, a lone surrogate; write the whole or "
            "none"
        )
