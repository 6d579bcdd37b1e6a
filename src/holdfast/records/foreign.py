"""Foreign exceptions: what user code raised, read without trust.

Looking at such an error runs code of its own: `__str__`, `__getattr__`, a property for `__class__`.
That may raise, too, and must cost no more than one trajectory. Whoever reads the class, message,
notes, causes, members or frames of an error that may be foreign does it through this module.
"""

import asyncio
import traceback as tracebacks
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TypeVar

Found = TypeVar("Found")
# Read past whatever a class defines under these names.
_name = type.__dict__["__name__"].__get__
_traceback = BaseException.__dict__["__traceback__"].__get__
_LINKS = (BaseException.__dict__["__cause__"], BaseException.__dict__["__context__"])
_members = BaseExceptionGroup.__dict__["exceptions"].__get__


class Unprintable(RuntimeError):
    """User code raised an error that cannot be looked at."""


class ExitCalled(RuntimeError):
    """User code raised an exception that is meant for the process or the event loop."""


class _Nobody(Exception):
    """Is never raised."""


def name_of(error: BaseException) -> str:
    """The name of its class."""
    return str(_name(type(error)))


def message_of(error: BaseException) -> str:
    """Its message, or why that cannot be read."""
    # Joined: a string of a class of its own becomes a plain one.
    return guarded(
        lambda: "".join((str(error),)),
        lambda worse: f"(its message cannot be read: {name_of(worse)})",
    )


def headline_of(error: BaseException) -> str:
    """`ConnectionError: refused`"""
    message = message_of(error)
    return f"{name_of(error)}: {message}" if message else name_of(error)


def traceback_of(error: BaseException) -> TracebackType | None:
    traceback: TracebackType | None = _traceback(error)
    return traceback


def frames_of(error: BaseException) -> list[tracebacks.FrameSummary]:
    """The frames where it was raised, outermost first."""
    return list(tracebacks.extract_tb(traceback_of(error)))


def text_of(error: BaseException) -> str:
    """Its whole traceback, with its causes."""
    return guarded(
        lambda: "".join(tracebacks.format_exception(readable(error))),
        lambda worse: plain_text_of(error),
    )


def plain_text_of(error: BaseException) -> str:
    """The traceback of an error that cannot be shown as others are: its frames and its message."""
    frames = "".join(tracebacks.format_list(frames_of(error)))
    return f"Traceback (most recent call last):\n{frames}{headline_of(error)}\n"


def members_of(error: BaseException) -> list[BaseException]:
    """The errors in a group, and in the groups inside it, without cancellations where there is
    anything else; of an error that is no group, itself. All of them are readable."""
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
    """`error`; or, where looking at it raises, what can be looked at instead. So are the errors
    that it follows from."""
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
    isinstance(error, _Nobody)  # Reads its `__class__`.
    str(error), repr(error), list(map(str, getattr(error, "__notes__", None) or ()))
    if issubclass(type(error), BaseExceptionGroup):
        for inner in _members(error):
            _read(inner)
    return error


def _stand_in(error: BaseException, worse: BaseException) -> Unprintable:
    message = f"{name_of(error)}, which cannot be looked at: it raises {name_of(worse)}"
    return Unprintable(message).with_traceback(traceback_of(error))


def harmless(error: BaseException, carrier: BaseException) -> Exception:
    """A readable error, as one that can be raised without ending a loop or a process; `carrier`:
    the group that it came in, or itself."""
    if isinstance(error, Exception):
        return error
    name, text = name_of(error), repr(error)
    if not text.startswith(name):  # pytest's outcomes show their text alone.
        text = f"{name}: {text}"
    called = ExitCalled(f"user code raised {text}")
    called.__cause__ = readable(carrier)
    return called


def guarded(read: "Callable[[], Found]", otherwise: "Callable[[BaseException], Found]") -> Found:
    """What `read` returns; if it raises, what `otherwise` makes of that."""
    try:
        return read()
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise
    except BaseException as worse:
        return otherwise(worse)
