"""Draws charts as SVG, on the server.

A chart is a picture with a title and a description, and the page shows its numbers in a table
beneath. So a chart needs no script and prints well, and a screen reader can read it. Marks may be
links. Colours are classes of the style sheet, so that charts follow the dark mode.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape

from markupsafe import Markup
from msgspec import Struct

WIDTH, HEIGHT = 640, 220
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 12, 28
Line = Sequence[tuple[float, float]]
MAX_BAR = 96
LEVELS = 11
"""The number of colours between the lowest and the highest reward."""


class Mark(Struct, frozen=True):
    """An event at a position of the x axis."""

    x: float
    label: str
    kind: str = "restart"
    href: str = ""


class Cell(Struct, frozen=True):
    """One trajectory in a heat map."""

    column: int
    row: int
    kind: str
    label: str
    href: str


def number(value: float) -> str:
    """Formats a number for a chart: with up to three decimals, or with two digits if it is very
    large or very small."""
    if not math.isfinite(value):
        return "–"
    if value and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.2g}"
    return f"{value:.3f}".rstrip("0").rstrip(".")


class _Frame:
    """Converts values to positions in the picture."""

    def __init__(self, xs: Sequence[float], ys: Sequence[float], *, height: int = HEIGHT):
        self.height = height
        self.left, self.right = min(xs, default=0.0), max(xs, default=1.0)
        low, high = min(ys, default=0.0), max(ys, default=1.0)
        if low == high == 0:
            high = 1.0
        if low == high:
            low, high = low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2
        self.low, self.high = low, high

    def x(self, value: float) -> float:
        span = (self.right - self.left) or 1.0
        return round(LEFT + (value - self.left) / span * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.height - BOTTOM - share * (self.height - TOP - BOTTOM), 1)

    def _label(self, value: float) -> str:
        """Returns the label of a value on the y axis. If all labels would look the same, the label
        is the distance from the lowest value."""
        is_alike = number(self.low) == number(self.high)
        return f"{value - self.low:+.1g}" if is_alike and value != self.low else number(value)

    def axes(self) -> str:
        parts = []
        for step in range(4):
            value = self.low + (self.high - self.low) * step / 3
            y = self.y(value)
            parts.append(f'<path class="grid" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>')
            parts.append(
                f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{self._label(value)}</text>'
            )
        for value, anchor in ((self.left, "start"), (self.right, "end")):
            at = f'x="{self.x(value)}" y="{self.height - 8}" text-anchor="{anchor}"'
            parts.append(f"<text {at}>{number(value)}</text>")
        return "".join(parts)


def _svg(body: str, *, title: str, text: str, height: int = HEIGHT) -> Markup:
    """Returns a chart as an SVG element. A chart with links has the role of a group, because an
    image hides its parts from screen readers."""
    head = f'<svg class="chart" viewBox="0 0 {WIDTH} {height}"'
    if "<a " in body:
        names = f' role="group" aria-label="{escape(f"{title}. {text}")}">'
    else:
        names = f' role="img"><title>{escape(title)}</title><desc>{escape(text)}</desc>'
    return Markup(f"{head}{names}{body}</svg>")  # noqa: S704 - every text in it is escaped


def line_chart(
    lines: Mapping[str, Line],
    *,
    title: str,
    axis: str,
    marks: Sequence[Mark] = (),
    span: tuple[float, float] | None = None,
) -> Markup:
    """Returns a chart of lines with common axes. The x axis has the values from `span[0]` to
    `span[1]`, or those of the lines. If there are few points, each point is also a dot, and its
    tooltip shows its numbers."""
    points = [p for line in lines.values() for p in line if math.isfinite(p[1])]
    frame = _Frame(span or [x for x, _ in points], [y for _, y in points])
    parts = [frame.axes()]
    for mark in marks:
        x = frame.x(min(max(mark.x, frame.left), frame.right))
        tip = f"<title>{escape(mark.label)}</title>"
        parts.append(f'<path class="mark" d="M{x} {TOP}V{frame.height - BOTTOM}">{tip}</path>')
    for at, (name, line) in enumerate(lines.items()):
        places = [(frame.x(x), frame.y(y), x, y) for x, y in line if math.isfinite(y)]
        path = "L".join(f"{x} {y}" for x, y, _, _ in places)
        parts.append(f'<path class="line line{at % 6}" d="M{path}"/>' if path else "")
        for px, py, x, y in places if len(places) <= 200 else ():
            tip = f"<title>{escape(name)}, {axis} {number(x)}: {number(y)}</title>"
            parts.append(
                f'<circle class="dot line{at % 6}" cx="{px}" cy="{py}" r="3">{tip}</circle>'
            )
    last = "; ".join(
        f"{name} from {number(line[0][1])} to {number(line[-1][1])}"
        for name, line in lines.items()
        if line
    )
    return _svg("".join(parts), title=title, text=f"Over {axis}: {last}")


def bar_chart(bars: Sequence[tuple[str, int, str]], *, title: str) -> Markup:
    """Returns a chart of bars. Each bar is given as (name, count, link)."""
    most = max((count for _, count, _ in bars), default=1) or 1
    frame = _Frame([0, max(len(bars), 1)], [0, most])
    wide = min((WIDTH - LEFT - RIGHT) / max(len(bars), 1), MAX_BAR)
    parts = [f'<path class="grid" d="M{LEFT} {frame.y(0)}H{WIDTH - RIGHT}"/>']
    for at, (name, count, href) in enumerate(bars):
        x, y = round(LEFT + at * wide, 1), frame.y(count)
        tip = f"<title>{escape(name)}: {count:,}</title>"
        size = f'width="{round(max(wide - 4, 1), 1)}" height="{round(frame.y(0) - y, 1)}"'
        bar = f'<rect class="bar" x="{x}" y="{y}" {size}>{tip}</rect>'
        parts.append(_linked(bar, href, f"{name}: {count:,}"))
        middle = round(x + (wide - 4) / 2, 1)
        parts.append(f'<text x="{middle}" y="{y - 3}" text-anchor="middle">{count:,}</text>')
        if len(name) * 6.5 < wide or at in (0, len(bars) - 1):
            below = f'x="{middle}" y="{frame.height - 10}" text-anchor="middle"'
            parts.append(f"<text {below}>{escape(name)}</text>")
    listed = ", ".join(f"{count:,} at {name}" for name, count, _ in bars)
    return _svg("".join(parts), title=title, text=listed)


def _linked(mark: str, href: str, label: str) -> str:
    if not href:
        return mark
    return f'<a href="{escape(href)}" aria-label="{escape(label)}">{mark}</a>'


SIZE = 16


def heat_map(cells: Sequence[Cell], *, title: str, text: str) -> Markup:
    """Returns a map of trajectories: a column for each task, a row for each sample."""
    columns = max((cell.column for cell in cells), default=0) + 1
    rows = max((cell.row for cell in cells), default=0) + 1
    parts = []
    for cell in cells:
        at = f'x="{cell.column * SIZE + 1}" y="{cell.row * SIZE + 1}"'
        box = f'<rect class="{cell.kind}" {at} width="{SIZE - 2}" height="{SIZE - 2}" rx="2"/>'
        tip = f"<title>{escape(cell.label)}</title>"
        parts.append(
            f'<a href="{escape(cell.href)}" aria-label="{escape(cell.label)}">{tip}{box}</a>'
        )
    wide, high = columns * SIZE, rows * SIZE
    head = f'<svg class="heat" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" '
    names = f'role="group" aria-label="{escape(f"{title}. {text}")}">'
    return Markup(f"{head}{names}{''.join(parts)}</svg>")  # noqa: S704 - every text is escaped


def level(reward: float, low: float, high: float) -> str:
    """Returns the CSS class of a reward's colour, on a scale from `low` to `high`."""
    share = 0.5 if high <= low else (reward - low) / (high - low)
    if high <= low and reward in (0.0, 1.0):
        share = reward
    return f"r{min(max(round(share * (LEVELS - 1)), 0), LEVELS - 1)}"


def time_line(events: Sequence[Mark], *, start: float, end: float, title: str) -> Markup:
    """Returns a chart of events over time. Each event is a dot, and each kind of event has its own
    row."""
    kinds = list(dict.fromkeys(event.kind for event in events))
    height = TOP + BOTTOM + 26 * max(len(kinds), 1)
    frame = _Frame([0, max(end - start, 1.0)], [0, 1], height=height)
    parts = []
    for at, kind in enumerate(kinds):
        y = TOP + 26 * at + 16
        parts.append(f'<path class="grid" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT}" y="{y - 6}">{escape(kind)}</text>')
        for event in events:
            if event.kind == kind:
                tip = f"<title>{escape(event.label)}</title>"
                place = f'cx="{frame.x(event.x - start)}" cy="{y}" r="4"'
                dot = f'<circle class="dot line{at % 6}" {place}>'
                parts.append(_linked(f"{dot}{tip}</circle>", event.href, event.label))
    for value, anchor in ((0.0, "start"), (max(end - start, 1.0), "end")):
        at_text = f'x="{frame.x(value)}" y="{height - 8}" text-anchor="{anchor}"'
        parts.append(f"<text {at_text}>{value:,.0f} s</text>")
    text = f"{len(events)} events in {end - start:,.0f} seconds"
    return _svg("".join(parts), title=title, text=text, height=height)
