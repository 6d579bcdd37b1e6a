"""Renders pages from templates.

Autoescape is always on. Characters that control a terminal or change the direction of text are
shown as visible symbols, so that no text hides another.
"""

import math
import time
from collections.abc import Mapping
from functools import cache
from urllib.parse import quote

from markupsafe import Markup

from holdfast.engine.progress.clustered import error_text, number_text
from holdfast.engine.report import many
from holdfast.extras import needed_by
from holdfast.records.encoding.redaction import redact
from holdfast.view import charts

with needed_by("holdfast view", extra="view"):
    from jinja2 import Environment, PackageLoader, StrictUndefined

MAX_SHOWN = 4_000
"""The longest text that a page shows at once, in characters. The rest follows in parts."""
_BIDI = (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C)
_SHOWN = {
    **{code: chr(0x2400 + code) for code in range(32) if code not in (9, 10)},
    0x7F: "␡",
    **{code: f"⟨U+{code:04X}⟩" for code in (*range(0x80, 0xA0), *_BIDI)},
    **dict.fromkeys(range(0xD800, 0xE000), "�"),
}


def shown(text: object) -> str:
    """Returns a text with its control characters as visible signs, and without credentials."""
    return redact(str(text)).translate(_SHOWN)


def run_url(run: str, *more: object) -> str:
    """Returns the path of a run's page, or of a page below it."""
    return "/run/" + "/".join(quote(str(part), safe="") for part in (run, *more))


def with_query(path: str, **values: object) -> str:
    """Returns the path with a query. A list gives a name several values."""
    pairs = ((name, v) for name, value in values.items() for v in _values(value))
    kept = [(name, value) for name, value in pairs if value not in ("", None)]
    query = "&".join(f"{quote(name)}={quote(str(value), safe='')}" for name, value in kept)
    return f"{path}?{query}" if query else path


def _values(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def duration(seconds: float) -> str:
    """Formats a number of seconds in its two largest units, such as "2 h 5 min"."""
    if not math.isfinite(seconds):
        return "–"
    if seconds < 10:
        return f"{seconds:.1f} s"
    days, rest = divmod(int(seconds), 86400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    first = next((at for at, (value, _) in enumerate(parts) if value), 3)
    return " ".join(f"{value} {unit}" for value, unit in parts[first : first + 2] if value)


def date(at: float) -> Markup:
    moment = time.gmtime(at)
    text = time.strftime("%Y-%m-%d %H:%M:%S UTC", moment)
    machine = time.strftime("%Y-%m-%dT%H:%M:%SZ", moment)
    return Markup('<time datetime="{}">{}</time>').format(machine, text)


def reward(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def mean(value: float | None, error: float | None = None) -> str:
    return "–" if value is None else f"{number_text(value, places=3)}{error_text(error, places=3)}"


def short_number(value: float) -> str:
    """Formats a count in a short form, such as "12.3 k" for 12,300."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if value >= size:
            return f"{value / (1e3 if unit == ' k' else size):.3g}{unit}"
    return f"{value:,.0f}"


@cache
def environment() -> Environment:
    made = Environment(
        loader=PackageLoader("holdfast.view"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "shown": shown,
        "duration": duration,
        "date": date,
        "reward": reward,
        "mean": mean,
        "short": short_number,
        "number": charts.number,
    }
    made.globals |= {"run_url": run_url, "with_query": with_query, "many": many}
    return made


def prepare() -> None:
    """Compiles the templates, so that the first page need not wait for this."""
    for name in environment().list_templates():
        environment().get_template(name)


def render(template: str, values: Mapping[str, object]) -> str:
    """Renders the page of a template with these values."""
    return environment().get_template(template).render(values)
