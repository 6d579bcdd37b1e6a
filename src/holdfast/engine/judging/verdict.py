"""The answer of a judge, read strictly: one JSON object with the scores that were asked for.

What is missing, beyond the scale, or no number is an error to be repaired, and never a score.
"""

import json
import math
import re
from collections.abc import Sequence

from msgspec import Struct

from holdfast.engine.judging.prompt import SINGLE, Rubric

_FENCED = re.compile(r"\A```(?:json)?\s*\n(.*)\n```\Z", re.DOTALL)
MAX_REASON = 4_000


class NoVerdict(ValueError):
    """The answer cannot be read; the message says why, for the judge itself."""


class JudgeVerdict(Struct, frozen=True):
    """The scores by criterion or candidate, as they were given, and why. None: cannot be judged."""

    scores: dict[str, float | None]
    reasons: dict[str, str]


def read_verdict(text: str, rubric: Rubric, names: Sequence[str]) -> JudgeVerdict:
    """`names`: of the criteria, or of the candidates; for a single score, none has a name."""
    found = _object(text)
    if tuple(names) == (SINGLE,):
        found = {SINGLE: found}
    if missing := [name for name in names if name not in found]:
        raise NoVerdict(f"it has no {', '.join(map(repr, missing))}")
    if extra := [name for name in found if name not in names]:
        raise NoVerdict(f"it has {', '.join(map(repr, extra))}, which was not asked for")
    scores: dict[str, float | None] = {}
    reasons: dict[str, str] = {}
    for name in names:
        scores[name], reasons[name] = _entry(found[name], rubric, name)
    return JudgeVerdict(scores, reasons)


def _object(text: str) -> dict[str, object]:
    body = text.strip()
    if fenced := _FENCED.match(body):
        body = fenced[1]
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise NoVerdict(f"it is no JSON ({error})") from None
    if not isinstance(found, dict):
        raise NoVerdict("it is no JSON object")
    return found


def _entry(entry: object, rubric: Rubric, name: str) -> tuple[float | None, str]:
    if not isinstance(entry, dict) or "score" not in entry:
        raise NoVerdict(f"{name!r} is no object with a 'score'")
    reason = entry.get("reason") or ""
    if not isinstance(reason, str):
        raise NoVerdict(f"the reason of {name!r} is no text")
    score = entry["score"]
    if score is None:
        return None, reason[:MAX_REASON]
    is_number = isinstance(score, int | float) and not isinstance(score, bool)
    if not is_number or (isinstance(score, float) and math.isnan(score)):
        raise NoVerdict(f"the score of {name!r} is no number")
    if not rubric.low <= score <= rubric.high:
        raise NoVerdict(f"the score of {name!r} is {score!s:.40}, and not {rubric.range}")
    return float(score), reason[:MAX_REASON]
