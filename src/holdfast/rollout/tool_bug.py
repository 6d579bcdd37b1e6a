"""Bugs in tools: told apart from what breaks around them, by what they raise.

A server that is down, a disk that is full: such a call broke, another may work. Python's own errors
for mistakes (`TypeError`, `KeyError`, …) say that the code is wrong. Were they taken for accidents,
a trajectory could go on around the bug, and be trained on.
"""

import builtins

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
    """An error of a tool in another process; `kind` is the name of its class."""

    def __init__(self, kind: str, message: str):
        super().__init__(f"{kind}: {message}")
        self.kind = kind


def is_bug(error: Exception) -> bool:
    """Classes of libraries, which may derive from Python's own, say nothing of the sort."""
    if isinstance(error, UsageError):
        return True
    if isinstance(error, RaisedElsewhere):
        kind: object = getattr(builtins, error.kind, None)
    else:
        kind = type(error) if type(error).__module__ == "builtins" else None
    if not isinstance(kind, type):
        return False
    # A text that cannot be decoded comes from outside, and is a `ValueError`, too.
    return kind is ValueError or issubclass(kind, _MISTAKES)
