"""Writes text to the terminal: JSON for scripts, and text that cannot do harm.

Ids and contents come from data sets and models. Their control characters are shown as escapes and
never take effect, and credentials are removed. If a stream cannot encode a character, the
character's escape is printed.
"""

import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from holdfast.records.encoding.redaction import redact

MAX_LINE = 2_000


def prepare_streams() -> None:
    """Prepares the streams so that a character that the locale cannot show never makes a command
    fail."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def one_line(text: str) -> str:
    """Returns foreign text (an HTML page, an exception) as one line of bounded length."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]} …"


def visible(text: str) -> str:
    """Returns the text with control characters as escapes, except line breaks and tabs."""
    return "".join(char if char in "\n\t" or _is_visible(char) else _escape(char) for char in text)


def visible_name(text: str) -> str:
    """Returns an id on one line, with control characters as escapes."""
    return "".join(char if _is_visible(char) else _escape(char) for char in text)


def date_text(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


_AGES = ((7 * 86400, "week"), (86400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))


def age_text(seconds: float) -> str:
    """Returns a duration or an age in its largest unit, such as 3 days."""
    size, unit = next((age for age in _AGES if seconds >= 2 * age[0]), _AGES[-1])
    number = max(0, int(seconds // size))
    return f"{number} {unit}{'' if number == 1 else 's'}"


def bytes_text(number: float) -> str:
    units = ("bytes", "kB", "MB", "GB", "TB")
    power = 0
    while number >= 1000 and power < len(units) - 1:
        number, power = number / 1000, power + 1
    return f"{number:.0f} {units[power]}" if power == 0 else f"{number:.1f} {units[power]}"


def notify(message: str) -> None:
    """Prints a line for people on standard error."""
    with reader_may_leave():
        line = one_line(visible(redact(message)))
        print(f"holdfast: {line}", file=sys.stderr, flush=True)


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """Ends the block without an error if the reader of the output goes away, as `head` does. Use
    this for reports about work that is already done."""
    try:
        yield
    except BrokenPipeError:
        forget_reader()


def print_json(value: object) -> None:
    """Prints one line of JSON in UTF-8, independent of the locale."""
    import msgspec

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.flush()
        sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")


def can_print() -> bool:
    """Returns whether standard output can be written. On a full disk, for example, it cannot."""
    try:
        if sys.stdout is not None:
            sys.stdout.write("\n")
            sys.stdout.flush()
    except OSError:
        return False
    return True


def forget_reader() -> None:
    """Drops buffered output, because its reader is gone and the flush at exit would fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    if _is_deserted(sys.stderr.fileno()):  # The reader is gone, as after `2>&1 | head`.
        os.dup2(nowhere, sys.stderr.fileno())
    os.close(nowhere)


def _is_deserted(pipe: int) -> bool:
    """Returns whether a file descriptor is a pipe whose reader is gone."""
    poll = select.poll()
    poll.register(pipe, select.POLLOUT)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _is_visible(char: str) -> bool:
    # Joiners and variation selectors are parts of emoji and of several scripts.
    return char.isprintable() or char in "\u200c\u200d\ufe0e\ufe0f\u3000"


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode()
