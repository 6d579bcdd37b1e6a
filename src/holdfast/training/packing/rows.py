"""Packs token sequences side by side into rows, with common beginnings only once.

A row is a list of segments. Each segment attends to itself and to its path back to the root. If no
beginning is shared, every sequence is one segment. A trained token is stored as a pair: the place
in the row that predicts it, and the token. A common beginning is therefore computed once, while
each sequence keeps its own trained tokens. The module is pure Python, and the same input always
gives the same rows.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from holdfast.records.errors import UsageError


class TokenSequence(Struct, frozen=True):
    """A sequence to be packed."""

    ids: Sequence[int]
    trained: Sequence[int]
    """Offsets of the trained tokens, ascending and at least 1."""
    family: int = 0
    """Sequences of one family are likely to begin alike, and are packed together."""


class Segment(Struct, frozen=True):
    """The tokens [start, end) of a row, which continue from the end of `parent`."""

    start: int
    end: int
    parent: int = -1
    """The number of the parent segment in the row; -1 for a root."""
    position: int = 0
    """The position of the first token in its sequence."""


class PackedRow(Struct, frozen=True):
    """A row of packed sequences. The lists after `segments` have an entry for each trained token.
    The entries of a sequence are next to each other, in the order of the sequence."""

    ids: list[int]
    positions: list[int]
    segments: list[Segment]
    predictors: list[int]
    """The place in the row that predicts the token."""
    targets: list[int]
    sequences: list[int]
    """The number of the packed sequence to which the token belongs."""
    indices: list[int]
    """The number of the token among that sequence's trained tokens."""

    def path(self, segment: int) -> list[int]:
        """Returns the numbers of the segments from the root to `segment`, including it."""
        parents = [segment]
        while (parent := self.segments[parents[-1]].parent) >= 0:
            parents.append(parent)
        return parents[::-1]


def pack(sequences: Sequence[TokenSequence], *, budget: int, share: bool = True) -> list[PackedRow]:
    """Packs every sequence once, into rows of at most `budget` tokens.

    Raises `UsageError` for a sequence that is longer than the budget, because no sequence is
    dropped silently.
    """
    for number, sequence in enumerate(sequences):
        if len(sequence.ids) > budget:
            raise UsageError(
                f"sequence {number} has {len(sequence.ids)} tokens, and a row at most {budget}: "
                "raise the token budget, or let truncation cut long trajectories"
            )
        if sequence.trained and sequence.trained[0] < 1:
            raise UsageError(f"sequence {number}: its first token has nothing that predicts it")
    trees: list[_Tree] = []
    for number in _packing_order(sequences, share=share):
        tree = _fitting(trees, sequences[number], budget=budget, share=share)
        tree.insert(sequences[number], number, share=share)
    return [tree.row(sequences) for tree in trees]


def _packing_order(sequences: Sequence[TokenSequence], *, share: bool) -> list[int]:
    """Returns the order in which sequences are packed. The longest sequence comes first, because
    this order fills rows best. With `share`, the sequences of a family are packed one after the
    other."""
    numbers = range(len(sequences))
    if not share:
        return sorted(numbers, key=lambda n: -len(sequences[n].ids))
    longest: dict[int, int] = {}
    for sequence in sequences:
        known = longest.get(sequence.family, 0)
        longest[sequence.family] = max(known, len(sequence.ids))
    return sorted(
        numbers,
        key=lambda n: (
            -longest[sequences[n].family],
            sequences[n].family,
            -len(sequences[n].ids),
        ),
    )


def _fitting(trees: "list[_Tree]", sequence: TokenSequence, *, budget: int, share: bool) -> "_Tree":
    """Returns the first row that has room for the sequence, preferably a row with the sequence's
    family. If no row has room, adds a new row."""
    if share:
        for tree in trees:
            if sequence.family not in tree.families:
                continue
            if tree.size + len(sequence.ids) - tree.shared_with(sequence.ids) <= budget:
                return tree
    for tree in trees:
        if tree.size + len(sequence.ids) <= budget:
            return tree
    trees.append(_Tree())
    return trees[-1]


class _Node:
    """A sequence of tokens in a tree, with the nodes that may follow it."""

    __slots__ = ("children", "ids", "members")

    def __init__(self, ids: Sequence[int]):
        self.ids = ids
        self.children: list[_Node] = []
        self.members: list[int] = []
        """The numbers of the sequences that end here."""


class _Tree:
    """The sequences of a row under construction."""

    def __init__(self) -> None:
        self.roots: list[_Node] = []
        self.size = 0
        self.families: set[int] = set()

    def shared_with(self, ids: Sequence[int]) -> int:
        """Returns how many tokens at the beginning of `ids` are in the row already."""
        nodes, at = self.roots, 0
        while True:
            node = next((n for n in nodes if at < len(ids) and n.ids[0] == ids[at]), None)
            if node is None:
                return at
            common = _common(node.ids, ids, at)
            at += common
            if common < len(node.ids):
                return at
            nodes = node.children

    def insert(self, sequence: TokenSequence, number: int, *, share: bool) -> None:
        ids = list(sequence.ids)
        self.families.add(sequence.family)
        self.size += len(ids) - (self.shared_with(ids) if share else 0)
        nodes, at = self.roots, 0
        while share and at < len(ids):
            node = next((n for n in nodes if n.ids[0] == ids[at]), None)
            if node is None:
                break
            common = _common(node.ids, ids, at)
            if common < len(node.ids):
                _split(node, common)
            at += common
            if at == len(ids):
                node.members.append(number)
                return
            nodes = node.children
        leaf = _Node(ids[at:])
        leaf.members.append(number)
        nodes.append(leaf)

    def row(self, sequences: Sequence[TokenSequence]) -> PackedRow:
        row = PackedRow([], [], [], [], [], [], [])
        # (node, number of its parent segment, where its path lies in the row)
        waiting: list[tuple[_Node, int, list[tuple[int, int]]]] = [
            (node, -1, []) for node in reversed(self.roots)
        ]
        while waiting:
            node, parent, path = waiting.pop()
            start, position = len(row.ids), sum(end - begin for begin, end in path)
            own = [*path, (start, start + len(node.ids))]
            row.segments.append(Segment(start, start + len(node.ids), parent, position))
            row.ids.extend(node.ids)
            row.positions.extend(range(position, position + len(node.ids)))
            for number in node.members:
                _train(row, sequences[number], number, own)
            segment = len(row.segments) - 1
            waiting.extend((child, segment, own) for child in reversed(node.children))
        return row


def _train(
    row: PackedRow, sequence: TokenSequence, number: int, path: Iterable[tuple[int, int]]
) -> None:
    """Adds the trained tokens of a sequence to the row. The sequence's tokens are in the row's
    ranges `path`."""
    ranges = iter(path)
    begin, end = next(ranges)
    before = 0  # The number of the sequence's tokens in earlier segments.
    for index, offset in enumerate(sequence.trained):
        predictor = offset - 1
        while predictor - before >= end - begin:
            before += end - begin
            begin, end = next(ranges)
        row.predictors.append(begin + predictor - before)
        row.targets.append(sequence.ids[offset])
        row.sequences.append(number)
        row.indices.append(index)


def _split(node: _Node, at: int) -> None:
    """Splits a node: it keeps its first `at` tokens, and the rest becomes its only child."""
    rest = _Node(node.ids[at:])
    rest.children, rest.members = node.children, node.members
    node.ids, node.children, node.members = node.ids[:at], [rest], []


def _common(left: Sequence[int], right: Sequence[int], start: int) -> int:
    """Returns how many tokens of `left` and `right` are equal from `start` on. Searches by halves,
    because comparing slices is fast."""
    low, high = 0, min(len(left), len(right) - start)
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[start + low : start + middle]:
            low = middle
        else:
            high = middle - 1
    return low
