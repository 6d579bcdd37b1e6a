"""Routed experts: which experts of a mixture sampled, or read, each token.

An engine that is asked for them gives a row of numbers for each token that it has put through the
model: `layers` × `top_k` of them. They are recorded once, as a blob beside the generation that
they came with, and only for tokens that no earlier generation has them for: storage grows with the
tokens. A trainer that routes each token as the engine did needs them for every token but the last.
"""

from collections.abc import Sequence

from msgspec import Struct


class ExpertRows(Struct, frozen=True, gc=False):
    """The rows of consecutive tokens, as an engine gave them."""

    width: int
    """Experts of one token: of all layers, one layer after the other."""
    layers: int
    """0: the engine does not say how many of them are of one layer."""
    size: int
    """Bytes of an expert's number: unsigned, the lowest first."""
    data: bytes

    @property
    def rows(self) -> int:
        return len(self.data) // (self.width * self.size)

    def first(self, rows: int) -> "ExpertRows":
        return ExpertRows(
            self.width, self.layers, self.size, self.data[: rows * self.width * self.size]
        )


class RoutedExperts(Struct, frozen=True, array_like=True, gc=False):
    """Rows of a token stream in a blob, those of tokens `start` to `end` (exclusive)."""

    blob: bytes
    start: int
    end: int
    width: int
    layers: int
    size: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """What all rows of one stream have in common."""
        return (self.width, self.layers, self.size)


def kept_before(experts: Sequence[RoutedExperts], keep: int) -> list[RoutedExperts]:
    """Those of a stream whose first `keep` tokens continue in another one."""
    return [
        RoutedExperts(e.blob, e.start, min(e.end, keep), e.width, e.layers, e.size)
        for e in experts
        if e.start < keep
    ]


def shrunk(numbers: bytes) -> tuple[int, bytes]:
    """32-bit little-endian numbers in as few bytes as hold them all, and the number of bytes. It
    loops over no single byte, because each token has hundreds."""
    planes = [numbers[place::4] for place in range(4)]
    if any(plane.count(0) != len(plane) for plane in planes[2:]):
        return 4, numbers
    if planes[1].count(0) == len(planes[1]):
        return 1, planes[0]
    packed = bytearray(2 * len(planes[0]))
    packed[0::2], packed[1::2] = planes[0], planes[1]
    return 2, bytes(packed)
