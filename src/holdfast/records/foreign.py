"""Reads exceptions of user code without trust.

Reading such an error can run foreign code: `__str__`, `__getattr__`, or a property for `__class__`.
This code may raise too, and it must not harm more than one trajectory. Use this module to read the
class, message, notes, causes, members or frames of any error that may be foreign.
"""

import asyncio
import traceback as tracebacks
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TypeVar

Found = TypeVar("Found")
# Reads the real attributes, even if a class redefines these names.
_name = type.__dict__["__name__"].__get__
_traceback = BaseException.__dict__["__traceback__"].__get__
_LINKS = (BaseException.__dict__["__cause__"], BaseException.__dict__["__context__"])
_members = BaseExceptionGroup.__dict__["exceptions"].__get__


class Unprintable(RuntimeError):
    """An error of user code that cannot be read."""


class ExitCalled(RuntimeError):
    """Replaces an exception of user code that would end the process or the event loop, such as
    `SystemExit`."""


class _Nobody(Exception):
    """A class that is never raised."""


def name_of(error: BaseException) -> str:
    """Returns the name of the error's class."""
    return str(_name(type(error)))


def message_of(error: BaseException) -> str:
    """Returns the error's message, or a text that says why the message cannot be read."""
    # Joining turns an instance of a str subclass into a plain string.
    return guarded(
        lambda: "".join((str(error),)),
        lambda worse: f"(its message cannot be read: {name_of(worse)})",
    )


def headline_of(error: BaseException) -> str:
    """Returns the class and the message, such as `ConnectionError: refused`."""
    message = message_of(error)
    return f"{name_of(error)}: {message}" if message else name_of(error)


def traceback_of(error: BaseException) -> TracebackType | None:
    traceback: TracebackType | None = _traceback(error)
    return traceback


def frames_of(error: BaseException) -> list[tracebacks.FrameSummary]:
    """Returns the frames of the error's traceback, outermost first."""
    return list(tracebacks.extract_tb(traceback_of(error)))


def text_of(error: BaseException) -> str:
    """Returns the error's whole traceback with its causes."""
    return guarded(
        lambda: "".join(tracebacks.format_exception(readable(error))),
        lambda worse: plain_text_of(error),
    )


def plain_text_of(error: BaseException) -> str:
    """Returns the frames and the message of an error that cannot be formatted in the normal way."""
    frames = "".join(tracebacks.format_list(frames_of(error)))
    return f"Traceback (most recent call last):\n{frames}{headline_of(error)}\n"


def members_of(error: BaseException) -> list[BaseException]:
    """Returns the errors in a group and in its inner groups, each readable. Cancellations are left
    out if there are other errors. For an error that is not a group, returns the error itself."""
    leaves = [readable(leaf) for leaf in _leaves(error)]
    real = [leaf for leaf in leaves if not isinstance(leaf, asyncio.CancelledError)]
    return real or leaves


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if not issubclass(type(error), BaseExceptionGroup):
        yield error
        return
    for inner in _members(error):
        yield from _leaves(inner)


def readable(error: BaseException) -> BaseException:
    """Returns the error, or a stand-in if reading the error raises. Also replaces the causes and
    contexts of the error that cannot be read."""
    text = _looked_at(error)
    left, seen = [text], {id(text)}
    while left:
        each = left.pop()
        for link in _LINKS:
            before = link.__get__(each)
            if before is None or id(before) in seen:
                continue
            after = _looked_at(before)
            seen.add(id(after))
            left.append(after)
            if after is not before:
                link.__set__(each, after)
    return text


def _looked_at(error: BaseException) -> BaseException:
    return guarded(lambda: _read(error), lambda worse: _stand_in(error, worse))


def _read(error: BaseException) -> BaseException:
    isinstance(error, _Nobody)  # This reads `__class__`.
    _ = type(error).__mro__, type(error).__module__  # A metaclass may refuse.
    str(error), repr(error), list(map(str, getattr(error, "__notes__", None) or ()))
    if issubclass(type(error), BaseExceptionGroup):
        for inner in _members(error):
            _read(inner)
    return error


def _stand_in(error: BaseException, worse: BaseException) -> Unprintable:
    message = f"{name_of(error)}, which cannot be looked at: it raises {name_of(worse)}"
    return Unprintable(message).with_traceback(traceback_of(error))


def harmless(error: BaseException, carrier: BaseException) -> Exception:
    """Converts a readable error to an exception that does not end a loop or a process. `carrier` is
    the group that contained the error, or the error itself."""
    if isinstance(error, Exception):
        return error
    name, text = name_of(error), repr(error)
    if not text.startswith(name):  # pytest's outcomes show only their text.
        text = f"{name}: {text}"
    called = ExitCalled(f"user code raised {text}")
    called.__cause__ = readable(carrier)
    return called


def guarded(read: "Callable[[], Found]", otherwise: "Callable[[BaseException], Found]") -> Found:
    """Returns the result of `read`. If `read` raises an error, returns the result of `otherwise`
    for that error. Only an interrupt by the user is raised. A cancellation is treated as an error
    of the foreign code, because `read` awaits nothing."""
    try:
        return read()
    except KeyboardInterrupt:
        raise
    except BaseException as worse:
        return otherwise(worse)
