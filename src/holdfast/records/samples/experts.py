"""The routed experts of tokens: which experts of a mixture sampled or read each token.

If asked, an engine returns a row of `layers` × `top_k` numbers for each token that it has
processed. Rows are recorded once, as a blob beside their generation, and only for tokens without
rows in earlier generations. Storage therefore grows with the number of tokens. A trainer that
routes tokens as the engine did needs the rows of every token except the last.
"""

from collections.abc import Sequence

from msgspec import Struct


class ExpertRows(Struct, frozen=True, gc=False):
    """The routed experts of consecutive tokens, in one row per token, as an engine returned
    them."""

    width: int
    """The number of experts per token over all layers. A row lists the layers one after the
    other."""
    layers: int
    """The number of layers; 0 if the engine does not report it."""
    size: int
    """The number of bytes of an expert's number, which is unsigned and little-endian."""
    data: bytes

    @property
    def rows(self) -> int:
        return len(self.data) // (self.width * self.size)

    def first(self, rows: int) -> "ExpertRows":
        return ExpertRows(
            self.width, self.layers, self.size, self.data[: rows * self.width * self.size]
        )


class RoutedExperts(Struct, frozen=True, array_like=True, gc=False):
    """The rows of tokens `start` to `end` (exclusive) of a token stream, stored in a blob."""

    blob: bytes
    start: int
    end: int
    width: int
    layers: int
    size: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Returns the properties that all rows of one stream share."""
        return (self.width, self.layers, self.size)


def kept_before(experts: Sequence[RoutedExperts], keep: int) -> list[RoutedExperts]:
    """Returns the experts of the first `keep` tokens of a stream, for another stream that begins
    with these tokens."""
    return [
        RoutedExperts(e.blob, e.start, min(e.end, keep), e.width, e.layers, e.size)
        for e in experts
        if e.start < keep
    ]


def shrunk(numbers: bytes) -> tuple[int, bytes]:
    """Packs 32-bit little-endian numbers into the fewest bytes that fit every number. Returns the
    bytes per number and the packed numbers. The function avoids a Python loop over single bytes,
    because each token has hundreds."""
    planes = [numbers[place::4] for place in range(4)]
    if any(plane.count(0) != len(plane) for plane in planes[2:]):
        return 4, numbers
    if planes[1].count(0) == len(planes[1]):
        return 1, planes[0]
    packed = bytearray(2 * len(planes[0]))
    packed[0::2], packed[1::2] = planes[0], planes[1]
    return 2, bytes(packed)
