"""Removes from an output what may differ when a command runs again.

Times, dates, durations, process ids, addresses in memory and random names of temporary files differ
each time. If anything else differs, the command had another result than the recorded one.
"""

import re

_MAY_DIFFER = re.compile(
    r"""
    \d{4}-\d\d-\d\d (?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:\s?(?:Z|UTC|[+-]\d\d:?\d\d))?)?
    | (?:\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,?\s+)?
      \b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\s+\d{1,2}
      (?:,?\s+\d{4})?(?:\s+\d\d:\d\d(?::\d\d)?)?(?:\s+[A-Z]{3,4})?(?:\s+\d{4})?
    | \b\d{1,2}:\d\d:\d\d(?:[.,]\d+)?\b
    | \b\d+(?:\.\d+)?\s?(?:ns|us|µs|μs|ms|s|sec|secs|seconds|m\d+(?:\.\d+)?s)\b
    | \b1[5-9]\d{8}(?:\.\d+)?\b
    | \b(?:pid|PID|process|Process)[\s=:\[(]*\d+
    | ^\[\d+\]\s+\d+
    | \b0x[0-9a-fA-F]{4,}\b
    | \b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b
    | /tmp/[\w.+-]*
    | \btmp[\w]{6,}\b
    """,
    re.VERBOSE | re.MULTILINE,
)


def without_chance(text: str) -> str:
    """Returns the text with a `?` in place of everything that may differ each time."""
    return _MAY_DIFFER.sub("?", text)
