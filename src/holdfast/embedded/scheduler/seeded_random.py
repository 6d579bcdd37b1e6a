"""Random numbers as pure functions: a token's depends on its seed and its position alone.

No generator has a state that an interruption could lose: position p of seed s has the same number
in any process, slot or batch.
"""

import secrets

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_STEPS = 1 << 52
SEED_LEAST, SEED_MOST = -(1 << 63), (1 << 63) - 1


def uniform(seed: int, position: int) -> float:
    """A number in (0, 1), neither end included, for the token at an absolute position."""
    bits = _mix(_mix(seed & _MASK) ^ (position * _GOLDEN & _MASK))
    return ((bits >> 12) + 0.5) / _STEPS


def derive_seed(seed: int, choice: int) -> int:
    """The seed of one of n choices. Choice 0 has the request's own: it equals n = 1."""
    if choice == 0:
        return seed
    return _mix(_mix(seed & _MASK) + choice * _GOLDEN & _MASK) >> 1


def fresh_seed() -> int:
    """For a request without one."""
    return secrets.randbits(63)


def _mix(bits: int) -> int:
    """The finalizer of splitmix64: every input bit changes half of the output bits."""
    bits = (bits + _GOLDEN) & _MASK
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB & _MASK
    return bits ^ (bits >> 31)
