"""Values of numpy as plain ones that a journal can hold."""

from collections.abc import Callable, Mapping

import msgspec
import numpy as np

MAX_NUMBERS = 1024
"""A larger array is not recorded with the `info` of a step,"""
MAX_BYTES = 64 * 1024
"""nor any value that takes more than this."""
_PLAIN = (bool, int, float, str, bytes, type(None))


class _Unrecordable(Exception):
    pass


def _refuse(value: object) -> object:
    raise _Unrecordable(f"{type(value).__name__} cannot be recorded")


def builtin(value: object, otherwise: Callable[[object], object] = _refuse) -> object:
    """The value in numbers, strings, lists and dicts; for anything else, what `otherwise` says."""
    match value:
        case np.generic() | np.ndarray():
            return value.tolist()
        case Mapping():
            return {str(key): builtin(part, otherwise) for key, part in value.items()}
        case list() | tuple():
            return [builtin(part, otherwise) for part in value]
        case _:
            return value if isinstance(value, _PLAIN) else otherwise(value)


def recordable(info: Mapping[str, object]) -> dict[str, object]:
    """What of an `info` can be recorded; the rest (large arrays, objects) is left out."""
    kept: dict[str, object] = {}
    for key, value in info.items():
        try:
            plain = builtin(_limited(value))
            size = len(msgspec.msgpack.encode(plain))
        except (_Unrecordable, OverflowError, RecursionError, ValueError, TypeError):
            continue  # An `info` is a courtesy: what cannot be kept is not worth an episode.
        if size <= MAX_BYTES:
            kept[str(key)] = plain
    return kept


def _limited(value: object) -> object:
    if isinstance(value, np.ndarray) and value.size > MAX_NUMBERS:
        return _refuse(value)
    return value
