"""Measures how near logprobs are to exact ones, and how far apart two data types may put them.

Two correct computations of the same model in bfloat16 differ by up to a nat at unlikely tokens, so
neither can be the reference. Each is therefore compared with float32 over many tokens, by its mean
and quantiles. The largest difference depends on a single token and decides nothing.

Two functions answer two questions:

- Is this way to compute the model (packed, compiled, on an engine) as good as the plain way in the
  same data type? `is_as_near(gap, plain)` compares two gaps to float32 on the same tokens.
- May an engine and a trainer with these data types differ by this much on average?
  `explained(dtype, …)` is the mean gap in nats that rounding was seen to cause.
"""

import math
from collections.abc import Sequence

from msgspec import Struct

FACTOR = 1.5
"""How many times as large as the plain computation's gap to float32 another computation's gap may
be. With real weights in bfloat16, means were within 1.1 of each other, and 99 % quantiles within
1.3."""
ROUNDING = 1e-4
"""The average rounding error of float32 itself in nats. Measured values are 1e-6 to 3e-5. A token
that is missing from a context changes the logprobs of the other tokens by more."""
QUANTILES = (0.5, 0.9, 0.99)
_EXPLAINED = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 0.1}
"""Mean gaps of sampled tokens in nats that rounding can explain. With real weights, the measured
gap between bfloat16 and float32 is 0.03."""


class Gap(Struct, frozen=True):
    """The absolute differences between logprobs and exact ones, in nats."""

    tokens: int
    mean: float
    quantiles: tuple[float, ...]
    """The differences at `QUANTILES`."""
    worst: float

    @property
    def text(self) -> str:
        return f"mean {self.mean:.2g}, 99 % {self.quantiles[-1]:.2g} nats"


def gap_between(logprobs: Sequence[float], exact: Sequence[float]) -> Gap:
    """Returns the gap between two lists of logprobs. The gap is infinite if a number is not
    finite."""
    assert len(logprobs) == len(exact) > 0, "the same tokens, and at least one"
    gaps = sorted(abs(a - b) for a, b in zip(logprobs, exact, strict=True))
    if not all(map(math.isfinite, gaps)):
        return Gap(len(gaps), math.inf, (math.inf,) * len(QUANTILES), math.inf)
    last = len(gaps) - 1
    quantiles = tuple(gaps[round(share * last)] for share in QUANTILES)
    return Gap(len(gaps), math.fsum(gaps) / len(gaps), quantiles, gaps[-1])


def is_as_near(gap: Gap, plain: Gap) -> bool:
    """Returns whether logprobs that are off by `gap` are as near to float32 as logprobs that are
    off by `plain`.

    The mean and each quantile of `gap` may be `FACTOR` times as large as in `plain`, plus float32's
    own rounding. Measure both gaps on the same tokens, a hundred or more. With 20 tokens, the 99 %
    quantile would be the largest difference.
    """
    pairs = zip((gap.mean, *gap.quantiles), (plain.mean, *plain.quantiles), strict=True)
    return all(own <= FACTOR * other + ROUNDING for own, other in pairs)


def explained(*dtypes: str) -> float:
    """Returns the mean gap in nats that the coarsest of these data types explains. The gap is
    between two correct computations of sampled tokens. An unknown data type counts as bfloat16. A
    larger gap means that something else is wrong or that the model is known to be noisier. In that
    case, compare with float32 (`is_as_near`)."""
    return max(_EXPLAINED.get(dtype, _EXPLAINED["bfloat16"]) for dtype in dtypes)


def coarsest(*dtypes: str) -> str:
    """Returns the data type that explains the largest gap. An unknown data type counts as
    bfloat16."""
    known = [dtype if dtype in _EXPLAINED else "bfloat16" for dtype in dtypes]
    return max(known, key=lambda dtype: _EXPLAINED[dtype])
