"""Micro-batches are rows with the weights of their trained tokens, divided among ranks.

All ranks compute a row at the same time and wait for each other. A round of rows, one for each
rank, therefore takes as long as its most expensive row. So the sequences are packed into rows that
fill whole rounds, and rows of similar cost are in the same round. The functions are pure: the same
sequences give the same rounds, and a single rank gets the rows as they were packed.
"""

from collections.abc import Callable, Sequence
from itertools import chain

from msgspec import Struct, structs

from holdfast.training.batch import TrainedSequence
from holdfast.training.packing.rows import PackedRow, TokenSequence, pack

ROUND_TOKENS = 1000
"""The cost of a round in addition to its rows, in tokens. Gathering a layer's weights and
distributing its gradients takes about as long as computing this many tokens."""
_SLACK = (1.0, 1.05, 1.15, 1.3, 1.6)
"""Factors by which a row may be longer than an even share of the tokens. Rows have unequal lengths,
because a sequence is never cut and sequences share beginnings."""

Rounds = list[list["TrainedRow | None"]]
"""Rounds in the order in which they are computed. Each has one row for every rank."""


class TrainedRow(Struct, frozen=True):
    """A row with all values from which its loss is computed. The lists from `engine_logprobs` to
    `advantages` have an entry for each trained token, and the other lists have an entry for each
    sequence."""

    row: PackedRow
    members: list[int]
    """The numbers of the sequences in the row."""
    lengths: list[int]
    """The number of trained tokens of each sequence."""
    weights: list[float]
    engine_logprobs: list[float]
    temperatures: list[float]
    advantages: list[float]
    fresh: list[bool]
    """For each sequence, whether it was sampled by the weights that are trained."""


def deal(
    sequences: Sequence[TrainedSequence],
    *,
    ranks: int,
    budget: int,
    share: bool,
    hidden: int,
    one_by_one: bool = False,
) -> Rounds:
    """Puts each sequence into one row of at most `budget` tokens, and divides the rows into rounds.
    A rank without a row in a round gets None. With `share`, common beginnings of sequences are
    stored once. With `one_by_one`, each sequence is a row of its own. `hidden` is the size of the
    model's hidden state."""
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
    """Returns the cost of a row, where computing one token without attention costs 1. Each pair of
    tokens that attend to each other costs 1 / (6 × hidden)."""
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
    """Returns the cheapest of several divisions into rows: rows that use the whole budget, or
    shorter rows that fill the rounds."""

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
