"""Turns errors into one clear line and an exit code."""

import contextlib
import errno
import sys
from collections.abc import Callable

from holdfast.cli.terminal.text import can_print, forget_reader, one_line, visible
from holdfast.records.encoding.redaction import redact
from holdfast.records.errors import HoldfastError, JournalCorrupt
from holdfast.records.exit_codes import Exit
from holdfast.records.foreign import headline_of, text_of

# Errors of a stream that accepts no data: full, over a quota, or not open for writing.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def guarded(command: Callable[[], int], *, journal: str = "") -> int:
    """Runs a command. Errors that a user can meet are printed as one line; a bug of ours is printed
    with its traceback."""
    try:
        return _flushed(command())
    except HoldfastError as error:
        return _report(error, journal)
    except BrokenPipeError:
        forget_reader()
        return Exit.OK
    except KeyboardInterrupt:
        return say("interrupted before anything was begun", Exit.INTERRUPTED)
    except Exception as error:
        return _unprinted(error) or _unforeseen(error)


def _report(error: HoldfastError, journal: str) -> Exit:
    """Prints the error on one line. Only a changed run is explained on several lines, and only an
    error in the user's file has a traceback."""
    if error.exit_code is Exit.CHANGED:
        _print(f"holdfast: {error}\n")
        return error.exit_code
    _print(getattr(error, "traceback", ""))
    more = f"; {advice(journal)}" if isinstance(error, JournalCorrupt) else ""
    return say(f"{error}{more}", error.exit_code)


def _flushed(code: int) -> int:
    """Flushes the output and returns the code. A reader that went away, such as `head`, does not
    change the code."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        forget_reader()
    return code


def _unprinted(error: Exception) -> Exit | None:
    """Reports an error that came because the disk behind standard output is full, and returns the
    exit code. Returns None for any other error."""
    if not isinstance(error, OSError) or error.errno not in _NO_ROOM or can_print():
        return None
    forget_reader()
    why = error.strerror or error
    return say(f"standard output cannot be written: {why}; what is recorded is safe", Exit.STOPPED)


def _unforeseen(error: Exception) -> Exit:
    """Reports an error of the user's code outside any trajectory, or a bug of ours."""
    from holdfast.rollout.code.load import user_traceback

    if own_frames := user_traceback(error):
        _print(own_frames)
        line = f"the rollout's own code failed: {headline_of(error)}"
    else:
        _print(text_of(error))
        line = "this is a bug in Holdfast; nothing that was recorded is lost"
    return say(line, Exit.STOPPED)


def advice(journal: str) -> str:
    """Returns the advice for a journal with a bad record."""
    return (
        f"`holdfast journal check {journal}` names every bad record; with --repair it sets them "
        "aside, and the run's own command makes good what they held"
    )


def say(message: str, code: Exit) -> Exit:
    _print(f"holdfast: {one_line(redact(message))}\n")
    return code


def _print(text: str) -> None:
    with contextlib.suppress(OSError):  # The reader has closed the stream.
        print(visible(redact(text)), file=sys.stderr, end="", flush=True)
