"""`Numeric`: scores numbers within a tolerance. They are compared as decimal numbers, so 0.1 is
exactly 0.1.
"""

import re
from decimal import Context, Decimal, localcontext

from holdfast.engine.scoring.scorer import Score, shown
from holdfast.records.errors import UsageError
from holdfast.scorers.answers import ReadyScorer, answer_in, scored

_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+"
_NUMBER = re.compile(
    # The sign is no minus between two numbers, and the number is no part of a name.
    r"(?:(?<![\w.)])[-+])?(?<![A-Za-z_\d.])"
    rf"(?:{_DIGITS})(?:[eE][-+]?\d+)?(?:/(?:{_DIGITS}))?"
)
_FRACTION = re.compile(r"\\[dt]?frac\{([^{}]+)\}\{([^{}]+)\}")


class Numeric(ReadyScorer, frozen=True):
    """The reward is 1 if the last number of the answer equals the ground truth, within a tolerance.

    The tolerance is the larger of `tolerance`, a distance, and `relative`, a share of the ground
    truth (0.01 is 1 %). Numbers may have a sign, commas between thousands, an exponent, or be
    fractions (3/4). Units and signs around numbers are ignored. `answer` works as in `Exact`. The
    ground truth is a number, or a text whose last number counts. If the ground truth is a list, one
    equal number is enough.
    """

    IS_ITS_IDENTITY = True
    tolerance: float = 0.0
    relative: float = 0.0
    answer: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tolerance < 0 or self.relative < 0:
            raise UsageError("Numeric: tolerance and relative are 0 or more")

    def wanted(self, ground_truth: object) -> list[Decimal]:
        with localcontext(_CONTEXT):
            return _values_of(ground_truth)

    def score(self, reply: str, wanted: list[Decimal]) -> Score:
        answer = answer_in(reply, self.answer)
        text = last_number(answer or "")
        with localcontext(_CONTEXT):
            is_near = text is not None and any(self._is_near(_value(text), v) for v in wanted)
        return scored(is_near, text)

    def _is_near(self, value: Decimal, wanted: Decimal) -> bool:
        allowed = max(_decimal(self.tolerance), _decimal(self.relative) * abs(wanted))
        return abs(value - wanted) <= allowed


_CONTEXT = Context(prec=60, traps=[])
"""The context for calculations. A number that a model writes may have any size, so an overflow
raises no error and equals no ground truth.
"""


def last_number(text: str) -> str | None:
    text = _FRACTION.sub(r"\1/\2", text.replace("\N{MINUS SIGN}", "-"))
    numbers = _NUMBER.findall(text)
    return numbers[-1] if numbers else None


def _values_of(ground_truth: object) -> list[Decimal]:
    values = ground_truth if isinstance(ground_truth, list | tuple) else [ground_truth]
    decimals = [_wanted(value) for value in values]
    if not decimals or None in decimals:
        raise UsageError(
            "Numeric compares with a ground_truth that is a number, a text with one, or a list of "
            f"them, not {shown(ground_truth)}"
        )
    return [value for value in decimals if value is not None]


def _wanted(value: object) -> Decimal | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _decimal(value)
    text = last_number(value) if isinstance(value, str) else None
    return None if text is None else _value(text)


def _value(text: str) -> Decimal:
    above, _, below = text.replace(",", "").partition("/")
    return Decimal(above) / Decimal(below) if below else Decimal(above)


def _decimal(number: float) -> Decimal:
    return Decimal(repr(number))
