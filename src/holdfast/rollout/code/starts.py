"""Starts: which values are of this start of the program alone, and so no part of what it is.

A time of the clock between the start of this process and now, an id that was drawn (UUID 4), and a
folder or file that `tempfile` has named: whoever starts the same program again has another one.
They are recognized by what they are, wherever they stand: in a field with a `default_factory`, in
an argument, in the middle of a text. The rest of the text counts.
"""

import os
import re
import tempfile
import time
from datetime import date, datetime, timedelta
from functools import lru_cache
from pathlib import Path

_UUID = re.compile(
    r"\b[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}\b", re.IGNORECASE
)
_NUMBER = re.compile(r"\d{10,19}(?:\.\d+)?")
_CLOCK = re.compile(r"\d{1,2}:\d{2}:\d{2}")
_DATED = re.compile(r"\d{4}-?\d{2}-?\d{2}[T _-]?\d{2}[:-]?\d{2}[:-]?\d{2}(?:[.,_-]\d{3,9}(?!\d))?")
_SHORT = re.compile(r"(?<!\d)\d{4}[_-]\d{6}(?!\d)")
"""A month, a day and a time, as `%m%d_%H%M%S` writes them."""
_UNITS = (1, 1_000, 1_000_000, 1_000_000_000)
"""Of a second, in which clocks count."""
_LONGEST = 100_000
"""Characters of a text that is looked at."""
_MARGIN = 2.0
_MIN_UPTIME = 60.0
_LARGEST = 1e20
"""No clock counts as far."""
_IMPORTED = time.monotonic()


@lru_cache(maxsize=1)
def _began() -> tuple[float, float]:
    """When this process began: by the wall clock, and since boot."""
    age = _age() + _MARGIN
    return time.time() - age, time.monotonic() - age


def _age() -> float:
    """Seconds since this process was started; since this was imported, where nobody says it."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return time.monotonic() - _IMPORTED


def is_of_this_start(number: float) -> bool:
    """Whether it is a time of a clock since this process began."""
    if abs(number) > _LARGEST:
        return False
    wall, since_boot = _began()
    if any(wall <= number / unit <= time.time() + _MARGIN for unit in _UNITS):
        return True
    if number > _MIN_UPTIME * 1e9 and number == int(number):  # `monotonic_ns`
        return since_boot <= number / 1e9 <= time.monotonic() + _MARGIN
    # Since boot it may be a small number: one with as many digits as clocks have, and no rate.
    is_fine = number > _MIN_UPTIME and round(number, 4) != number
    return is_fine and since_boot <= number <= time.monotonic() + _MARGIN


def without_start(text: str) -> str:
    """`text` without what is of this start."""
    if len(text) > _LONGEST:
        return text
    text = _temporary(tempfile.gettempdir()).sub(_without_drawn, text)
    text = _UUID.sub("id", text)
    text = _NUMBER.sub(
        lambda found: "time" if is_of_this_start(float(found[0])) else found[0], text
    )
    return _without_clock(text)


def _without_clock(text: str) -> str:
    """Without a date and a time of day since this process began, in whichever order."""
    text = _DATED.sub(lambda found: _time_or(found[0], _digits(found[0])[:14]), text)
    year = datetime.now().year
    text = _SHORT.sub(lambda found: _time_or(found[0], f"{year}{_digits(found[0])}"), text)
    today = date.today()
    for clock in set(_CLOCK.findall(text)):
        for day in (today, today - timedelta(days=1), today + timedelta(days=1)):
            shown = [each for each in _as_shown(day) if each in text]
            moment = f"{day:%Y%m%d}{_digits(clock.zfill(8))}"
            if shown and str(day.year) in text and _is_since_began(moment):
                for part in (clock, *shown, f"{day:%A}", f"{day:%a}"):
                    text = text.replace(part, "time")
    return text


def _time_or(text: str, digits: str) -> str:
    return "time" if _is_since_began(digits) else text


def _digits(text: str) -> str:
    return re.sub(r"\D", "", text)


def _as_shown(day: date) -> tuple[str, ...]:
    """As `ctime` and people write it."""
    return f"{day}", f"{day:%b} {day.day:>2}", f"{day:%b} {day.day}", f"{day:%d/%m}", f"{day:%m/%d}"


def _is_since_began(digits: str) -> bool:
    try:
        moment = datetime.strptime(digits, "%Y%m%d%H%M%S")
    except ValueError:
        return False
    began = datetime.fromtimestamp(_began()[0])
    utc = timedelta(seconds=time.altzone if time.localtime().tm_isdst else time.timezone)
    end = datetime.now() + timedelta(seconds=_MARGIN)
    return began <= moment <= end or began + utc <= moment <= end + utc


@lru_cache(maxsize=1)
def _temporary(folder: str) -> re.Pattern[str]:
    """What may be named by `tempfile`: a prefix, and eight characters that are drawn."""
    return re.compile(rf"({re.escape(folder)}/)([^/\s'\"]*?)([a-z0-9_]{{8}})(?![a-zA-Z0-9_])")


def _without_drawn(found: re.Match[str]) -> str:
    """The path without what was drawn, if it was. What else is in the temporary folder may be the
    user's own, and there at the next start."""
    path, folder, prefix = found[0], found[1], found[2]
    is_named = prefix == tempfile.gettempprefix()
    if is_named or (prefix and not prefix[-1].isalnum() and _is_private(path)):
        return f"{folder}{prefix}…"
    return path


def _is_private(path: str) -> bool:
    """Whether it is a folder or file for this user alone, as `tempfile` makes them."""
    try:
        return not os.stat(path).st_mode & 0o077
    except OSError:
        return False
