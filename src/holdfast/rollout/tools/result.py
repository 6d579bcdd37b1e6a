"""Converts the return value of a tool to the text that the model sees."""

import builtins
import json

import msgspec

from holdfast.records.errors import EnvironmentBroken, UsageError

_MISTAKES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    RecursionError,
    SyntaxError,
    TypeError,
)


class RaisedElsewhere(EnvironmentBroken):
    """An error that a tool raised in another process. `kind` is the name of the error's class."""

    def __init__(self, kind: str, message: str):
        super().__init__(f"{kind}: {message}")
        self.kind = kind


def is_bug(error: Exception) -> bool:
    """Returns whether the error is one of Python's own that shows a bug in the tool, such as
    `TypeError`. Errors of libraries do not count, even if their classes derive from such an
    error."""
    if isinstance(error, UsageError):
        return True
    if isinstance(error, RaisedElsewhere):
        kind: object = getattr(builtins, error.kind, None)
    else:
        kind = type(error) if type(error).__module__ == "builtins" else None
    if not isinstance(kind, type):
        return False
    # Undecodable text comes from outside, although UnicodeDecodeError is a `ValueError`.
    return kind is ValueError or issubclass(kind, _MISTAKES)


MAX_RESULT = 64 * 1024 * 1024
"""The most bytes of a result that are accepted."""


def result_text(value: object) -> str:
    """Returns a tool's return value as the model sees it: text that can be recorded.

    Raises `ValueError` if the value is too large or cannot be shown as text.
    """
    text = _text(value).encode("utf-8", "backslashreplace")
    if len(text) > MAX_RESULT:
        # A record that is too large for the journal would stop the whole run.
        raise ValueError(f"it returned {len(text):,} bytes; the limit is {MAX_RESULT:,}")
    return text.decode()


def cut_middle(text: str, limit: int) -> str:
    """Cuts text that is longer than `limit` characters. Returns its beginning and its end, together
    `limit` characters, with a note in between of how many characters are missing."""
    if len(text) <= limit:
        return text
    head = (limit + 1) // 2
    tail = len(text) - (limit - head)
    return f"{text[:head]}\n… {tail - head:,} characters left out …\n{text[tail:]}"


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    try:
        return _json(value)
    except (TypeError, ValueError, RecursionError):
        return _repr(value)


def _json(value: object) -> str:
    encoded = msgspec.json.encode(value, enc_hook=_repr)
    if b"null" not in encoded:
        return encoded.decode()
    # msgspec would write NaN and infinity as null, which means something else.
    plain = msgspec.to_builtins(value, enc_hook=_repr, str_keys=True)
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))


def _repr(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:
        kind = type(value).__name__
        raise ValueError(
            f"it returned a {kind} that cannot be shown: its repr raised {type(error).__name__}"
        ) from error
