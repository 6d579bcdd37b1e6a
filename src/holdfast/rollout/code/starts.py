"""Starts: which values are of this start of the program alone, and so no part of what it is.

A time of the clock between the start of this process and now, an id that was drawn (UUID 4), and a
folder or file that `tempfile` has named: whoever starts the same program again has another one.
They are recognized by what they are, wherever they stand: in a field with a `default_factory`, in
an argument, in the middle of a text.
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
_DATED = re.compile(r"\d{4}-?\d{2}-?\d{2}[T _-]?\d{2}[:-]?\d{2}[:-]?\d{2}")
_DRAWN = re.compile(rf"{tempfile.gettempprefix()}[a-z0-9_]{{8}}(?![a-zA-Z0-9_])")
_UNITS = (1, 1_000, 1_000_000, 1_000_000_000)
"""Of a second, in which clocks count."""
_LONGEST = 1_000
"""Characters of a text that is looked at: an id or a name, not a prompt."""
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
    # Since boot it may be a small number: one with as many digits as clocks have, and no rate.
    is_fine = number > _MIN_UPTIME and round(number, 4) != number
    return is_fine and since_boot <= number <= time.monotonic() + _MARGIN


def without_start(text: str) -> str:
    """`text` without what is of this start."""
    if len(text) > _LONGEST:
        return text
    if is_temporary(text):
        return "temporary"
    text = _UUID.sub("id", text)
    text = _NUMBER.sub(
        lambda found: "time" if is_of_this_start(float(found[0])) else found[0], text
    )
    return "time" if _shows_clock(text) else text


def _shows_clock(text: str) -> bool:
    """Whether it has a date with a time of day since this process began, in whichever order."""
    now = datetime.now()
    days = [now.date(), now.date() - timedelta(days=1), now.date() + timedelta(days=1)]
    moments = [
        f"{day:%Y%m%d}{clock.zfill(8).replace(':', '')}"
        for clock in _CLOCK.findall(text)
        for day in days
        if str(day.year) in text and any(shown in text for shown in _as_shown(day))
    ]
    moments += [re.sub(r"\D", "", found) for found in _DATED.findall(text)]
    return any(map(_is_since_began, moments))


def _as_shown(day: date) -> tuple[str, ...]:
    """As `ctime` and people write it."""
    return f"{day:%b} {day.day:>2}", f"{day:%b} {day.day}", f"{day:%d/%m}", f"{day:%m/%d}"


def _is_since_began(digits: str) -> bool:
    try:
        moment = datetime.strptime(digits, "%Y%m%d%H%M%S")
    except ValueError:
        return False
    began = datetime.fromtimestamp(_began()[0])
    utc = timedelta(seconds=time.altzone if time.localtime().tm_isdst else time.timezone)
    end = datetime.now() + timedelta(seconds=_MARGIN)
    return began <= moment <= end or began + utc <= moment <= end + utc


def is_temporary(path: str) -> bool:
    """Whether it is in a folder or file that `tempfile` has named. By its name alone: what else is
    in the temporary folder may be the user's own, and there at the next start."""
    root = f"{tempfile.gettempdir()}/"
    return path.startswith(root) and _DRAWN.match(path.removeprefix(root)) is not None
