"""Terminal output as plain text. A colour may carry meaning (the agent's cell), so it becomes a
bracket: `[S]` has a background, `(S)` is bold, `{S}` has another colour.
"""

import re
from collections.abc import Iterator

_STYLE = re.compile(r"\x1b\[([0-9;]*)m")
_CONTROL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\-_])|[\x00-\x08\x0b-\x1f\x7f]")
_MARKS = {"back": "[]", "bold": "()", "fore": "{}"}
_OFF = {22: "bold", 27: "back", 39: "fore", 49: "back"}


def plain(text: str) -> str:
    """The text without escape codes, its styled parts in brackets."""
    pieces = _STYLE.split(text)
    parts, style = [_CONTROL.sub("", pieces[0])], set[str]()
    for codes, piece in zip(pieces[1::2], pieces[2::2], strict=True):
        _change(style, codes)
        parts.append(_bracketed(_CONTROL.sub("", piece), style))
    return "".join(parts)


def _bracketed(piece: str, style: set[str]) -> str:
    mark = next((_MARKS[kind] for kind in _MARKS if kind in style), "")
    if not mark:
        return piece
    return "\n".join(mark[0] + line + mark[1] if line else line for line in piece.split("\n"))


def _change(style: set[str], codes: str) -> None:
    for code in _numbers(codes):
        if code == 0:
            style.clear()
        elif code in _OFF:
            style.discard(_OFF[code])
        elif kind := _kind(code):
            style.add(kind)


def _kind(code: int) -> str:
    if code == 7 or 40 <= code <= 48 or 100 <= code <= 107:
        return "back"
    if code == 1:
        return "bold"
    return "fore" if 30 <= code <= 38 or 90 <= code <= 97 else ""


def _numbers(codes: str) -> Iterator[int]:
    numbers = iter([int(code or 0) for code in codes.split(";")])
    for code in numbers:
        yield code
        if code in (38, 48):
            # The number of the colour follows, as `5;n` or `2;r;g;b`.
            for _ in range({5: 1, 2: 3}.get(next(numbers, 0), 0)):
                next(numbers, None)
