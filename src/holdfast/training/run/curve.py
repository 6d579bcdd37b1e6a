"""Draws the learning curve as an SVG picture, with one line for each run."""

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, MARGIN = 720, 360, 48
COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626")


def draw(
    curves: Mapping[str, Sequence[tuple[float, float]]],
    *,
    title: str,
    axis: str,
    marks: Sequence[float] = (),
) -> str:
    """Draws the named lines of (x, y) points as an SVG. A line that equals an earlier one is
    dashed, so that both are visible. `marks` are places on the x axis that get a mark."""
    points = [point for line in curves.values() for point in line]
    if not points:
        points = [(0.0, 0.0)]
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(0.0, *(y for _, y in points)), max(1.0, *(y for _, y in points))

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - left) / ((right - left) or 1)
        up = (y - low) / ((high - low) or 1)
        return (
            round(MARGIN + across * (WIDTH - 2 * MARGIN), 1),
            round(HEIGHT - MARGIN - up * (HEIGHT - 2 * MARGIN), 1),
        )

    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{MARGIN}" y="24" font-size="15">{escape(title)}</text>',
        f'<text x="{WIDTH - MARGIN}" y="{HEIGHT - 12}" text-anchor="end">{escape(axis)}</text>',
    ]
    for number in range(6):
        value = low + (high - low) * number / 5
        _, y = place(left, value)
        parts.append(f'<path d="M{MARGIN} {y}H{WIDTH - MARGIN}" stroke="#e5e7eb"/>')
        parts.append(f'<text x="{MARGIN - 6}" y="{y + 4}" text-anchor="end">{value:.2f}</text>')
    below = HEIGHT - MARGIN + 18
    parts += [
        f'<text x="{place(x, low)[0]}" y="{below}" text-anchor="middle">{x:g}</text>'
        for x in (left, right)
    ]
    for x in marks:
        across, bottom = place(x, low)
        parts.append(f'<path d="M{across} {MARGIN}V{bottom}" stroke="#fca5a5" stroke-width="2"/>')
    drawn: list[Sequence[tuple[float, float]]] = []
    for number, (name, line) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        dash = ' stroke-dasharray="6 6"' if line in drawn else ""
        drawn.append(line)
        path = "L".join(" ".join(map(str, place(x, y))) for x, y in line)
        if line:
            parts.append(
                f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'
            )
        # Curves rise, so there is room below their ends.
        x, y = WIDTH - MARGIN - 12, HEIGHT - MARGIN - 12 - 16 * (len(curves) - number)
        where = f'x="{x}" y="{y}" text-anchor="end"'
        parts.append(f'<text {where} fill="{colour}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
