"""How near logprobs are to exact ones, and how far apart two data types may put them.

Two computations of the same model in bfloat16 differ by up to a nat at unlikely tokens, and both
are right: neither of them is the yardstick. So each is compared with float32, over many tokens, by
its mean and quantiles. The largest difference is one token's luck and decides nothing.

The two questions, and the two functions that answer them:

- Is this way to compute the model (packed, compiled, on an engine) as good as the plain one in the
  same data type? `is_as_near(gap, plain)`, both measured against float32 on the same tokens.
- May an engine and a trainer of these data types differ by so much on average?
  `explained(dtype, …)` is the mean gap in nats that rounding alone was seen to make.
"""

import math
from collections.abc import Sequence

from msgspec import Struct

FACTOR = 1.5
"""How much farther from float32 another order of the same additions may be than the plain one. The
means of real weights in bfloat16 were within 1.1 of each other, 99 % quantiles within 1.3."""
ROUNDING = 1e-4
"""In nats, on average: what float32 itself loses. 1e-6 to 3e-5 were seen; a token that is missing
from a context moves the others by more."""
QUANTILES = (0.5, 0.9, 0.99)
_EXPLAINED = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 0.1}
"""Mean gaps of sampled tokens in nats. With real weights, bfloat16 is 0.03 from float32."""


class Gap(Struct, frozen=True):
    """The absolute differences between logprobs and exact ones, in nats."""

    tokens: int
    mean: float
    quantiles: tuple[float, ...]
    """At `QUANTILES`."""
    worst: float

    @property
    def text(self) -> str:
        return f"mean {self.mean:.2g}, 99 % {self.quantiles[-1]:.2g} nats"


def gap_between(logprobs: Sequence[float], exact: Sequence[float]) -> Gap:
    """Infinite where a number is not finite."""
    assert len(logprobs) == len(exact) > 0, "the same tokens, and at least one"
    gaps = sorted(abs(a - b) for a, b in zip(logprobs, exact, strict=True))
    if not all(map(math.isfinite, gaps)):
        return Gap(len(gaps), math.inf, (math.inf,) * len(QUANTILES), math.inf)
    last = len(gaps) - 1
    quantiles = tuple(gaps[round(share * last)] for share in QUANTILES)
    return Gap(len(gaps), math.fsum(gaps) / len(gaps), quantiles, gaps[-1])


def is_as_near(gap: Gap, plain: Gap, *, factor: float = FACTOR) -> bool:
    """Whether logprobs that are off by `gap` are as near to float32 as those that are off by
    `plain`: their mean and each quantile, but for `factor` and float32's own rounding. Both gaps
    are of the same tokens, some hundred of them: of 20, the 99 % quantile is the largest."""
    pairs = zip((gap.mean, *gap.quantiles), (plain.mean, *plain.quantiles), strict=True)
    return all(own <= factor * other + ROUNDING for own, other in pairs)


def explained(*dtypes: str) -> float:
    """The mean gap in nats that the coarsest of these data types explains between two right
    computations of sampled tokens; an unknown one counts as bfloat16. Above it, something else is
    wrong, or a model is known to be noisier: float32 is the judge (`is_as_near`)."""
    return max(_EXPLAINED.get(dtype, _EXPLAINED["bfloat16"]) for dtype in dtypes)


def coarsest(*dtypes: str) -> str:
    """The data type that explains most; "bfloat16" for unknown ones."""
    known = [dtype if dtype in _EXPLAINED else "bfloat16" for dtype in dtypes]
    return max(known, key=lambda dtype: _EXPLAINED[dtype])
