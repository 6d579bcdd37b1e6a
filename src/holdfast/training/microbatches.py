"""Micro-batches: rows with what each of their trained tokens counts, dealt out to ranks.

All ranks compute a row at the same time, and wait for each other: a round of rows takes as long as
its dearest one. So rows are cut to fill rounds, and rows of similar cost are computed together.
Pure; the same sequences give the same rounds, and one rank gets the rows as they were packed.
"""

from collections.abc import Callable, Sequence
from itertools import chain

from msgspec import Struct, structs

from holdfast.training.batch import TrainedSequence
from holdfast.training.packing.rows import PackedRow, TokenSequence, pack

ROUND_TOKENS = 1000
"""The cost of a round beside its rows, in tokens: gathering a layer's weights and spreading its
gradients takes about as long as computing this many."""
_SLACK = (1.0, 1.05, 1.15, 1.3, 1.6)
"""How much longer than an even share rows may be: sequences are not cut, and share beginnings."""

Rounds = list[list["TrainedRow | None"]]
"""In the order in which they are computed; of each, the row of every rank."""


class TrainedRow(Struct, frozen=True):
    """A row, with all that a loss is computed from. The lists from `engine_logprobs` to
    `advantages` have an entry for each trained token, the others one for each sequence."""

    row: PackedRow
    members: list[int]
    """The numbers of its sequences."""
    lengths: list[int]
    """How many trained tokens each of them has."""
    weights: list[float]
    engine_logprobs: list[float]
    temperatures: list[float]
    advantages: list[float]
    fresh: list[bool]
    """Of each sequence: whether the weights that are trained have sampled it."""


def deal(
    sequences: Sequence[TrainedSequence],
    *,
    ranks: int,
    budget: int,
    share: bool,
    hidden: int,
    one_by_one: bool = False,
) -> Rounds:
    """Every sequence once, in rows of at most `budget` tokens, one for each rank in a round; None
    where a rank has nothing to do. `hidden`: the size of the model's hidden state. `one_by_one`:
    each sequence is a row of its own."""
    tokens = [sequence.tokens for sequence in sequences]

    def packed(size: int) -> list[PackedRow]:
        return pack(tokens, budget=size, share=share)

    rows = _single(tokens) if one_by_one else packed(budget)
    rounds = _rounds(rows, ranks=ranks, hidden=hidden)
    if ranks > 1 and not one_by_one and rows:
        rounds = _evened(rounds, tokens, packed, ranks=ranks, budget=budget, hidden=hidden)
    return [
        [None if row is None else _trained(row, sequences) for row in together]
        for together in rounds
    ]


def cost(row: PackedRow, hidden: int) -> float:
    """In tokens. A pair of tokens that attend to each other costs a 6 × hidden-th of what a token
    costs in the other products of a transformer."""
    pairs = 0.0
    for segment in row.segments:
        width = segment.end - segment.start
        pairs += width * (segment.position + (width + 1) / 2)
    return len(row.ids) + pairs / (6 * hidden)


def _single(tokens: Sequence[TokenSequence]) -> list[PackedRow]:
    rows = [pack([sequence], budget=len(sequence.ids))[0] for sequence in tokens]
    return [
        structs.replace(row, sequences=[number] * len(row.targets))
        for number, row in enumerate(rows)
    ]


def _rounds(rows: Sequence[PackedRow], *, ranks: int, hidden: int) -> list[list[PackedRow | None]]:
    if ranks == 1:
        return [[row] for row in rows]
    ordered = sorted(rows, key=lambda row: -cost(row, hidden))
    filled = [*ordered, *[None] * (-len(ordered) % ranks)]
    return [filled[start : start + ranks] for start in range(0, len(filled), ranks)]


def _evened(
    rounds: list[list[PackedRow | None]],
    tokens: Sequence[TokenSequence],
    packed: Callable[[int], list[PackedRow]],
    *,
    ranks: int,
    budget: int,
    hidden: int,
) -> list[list[PackedRow | None]]:
    """The cheapest of several ways to cut: rows of the whole budget, or shorter ones that fill
    these rounds."""

    def price(packed: list[list[PackedRow | None]]) -> float:
        dearest = (max(cost(row, hidden) for row in each if row is not None) for each in packed)
        return sum(dearest) + ROUND_TOKENS * len(packed)

    longest = max(len(sequence.ids) for sequence in tokens)
    total = sum(len(row.ids) for row in chain.from_iterable(rounds) if row is not None)
    even = total / (len(rounds) * ranks)
    sizes = {min(budget, max(longest, round(even * slack))) for slack in _SLACK} - {budget}
    ways = [rounds]
    ways += [_rounds(packed(size), ranks=ranks, hidden=hidden) for size in sorted(sizes)]
    return min(ways, key=price)


def _trained(row: PackedRow, sequences: Sequence[TrainedSequence]) -> TrainedRow:
    members = list(dict.fromkeys(row.sequences))
    chosen = [sequences[number] for number in members]
    return TrainedRow(
        row,
        members,
        lengths=[len(s.tokens.trained) for s in chosen],
        weights=[s.weight for s in chosen],
        engine_logprobs=list(chain.from_iterable(s.engine_logprobs for s in chosen)),
        temperatures=list(chain.from_iterable(s.temperatures for s in chosen)),
        advantages=list(chain.from_iterable(s.advantages for s in chosen)),
        fresh=[s.is_fresh for s in chosen],
    )
