"""Computes attention whose bits depend only on a query's own position and its own cache.

Keys and values are taken in blocks of fixed size. The product of a query with one block is always
the same small matrix product, and one batched call makes many of them. The maximum over blocks is
exact. The sums over blocks are made one after another in order of position. A block that a shorter
sequence does not have adds exactly 0. So the other rows, their lengths, and the slot do not affect
the result.

The blocks of the cache are the outermost dimension, so block b of all slots is one piece of memory.
The decoding of all slots multiplies directly from the cache, and the cache grows by appending
blocks. Memory follows the longest sequence that was ever held, not the longest that is allowed.

The attention is registered with transformers under the name `holdfast`. A model's layers call it
with one row of tokens that belong to many sequences. The `AttentionBatch` that the running thread
has entered says which token belongs to which sequence.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from msgspec import Struct
from torch import Tensor

NAME = "holdfast"
_UNKNOWN_ARGUMENTS = ("softcap", "s_aux", "position_bias", "alibi")
_MIN_SHARED_ROWS = 8
"""The number of rows from which rows of one sequence share its keys and values. For fewer rows,
copies are cheaper."""
_current = threading.local()


BLOCK = 64
"""The positions in a block. This number is part of the arithmetic: it decides the order of the
sums.
"""


class Cache:
    """The keys and values of all slots: for each layer, a tensor of keys and a tensor of values,
    both [blocks, slots, heads, BLOCK, size]."""

    def __init__(self, *, layers: int, slots: int, heads: int, size: int, device: torch.device):
        self._shape = (slots, heads, BLOCK, size)
        self._device = device
        self.blocks = 0
        self.keys = [self._empty(0) for _ in range(layers)]
        self.values = [self._empty(0) for _ in range(layers)]

    def reserve(self, positions: int) -> None:
        """Makes room for sequences of `positions` positions."""
        needed = -(-positions // BLOCK)
        if needed <= self.blocks:
            return
        more = self._empty(max(needed, 2 * self.blocks) - self.blocks)
        for tensors in (self.keys, self.values):
            for layer, tensor in enumerate(tensors):
                tensors[layer] = torch.cat((tensor, more))
        self.blocks += len(more)

    def copy(self, source: int, target: int, *, positions: int) -> None:
        """Copies the first positions of one slot to another."""
        blocks = -(-positions // BLOCK)
        for tensor in (*self.keys, *self.values):
            tensor[:blocks, target] = tensor[:blocks, source]

    def clean(self, slot: int) -> None:
        """Clears a slot to remove numbers that are not finite. Even behind a mask, they would spoil
        a sum, because 0 × NaN is NaN."""
        for tensor in (*self.keys, *self.values):
            tensor[:, slot] = 0.0

    def _empty(self, blocks: int) -> Tensor:
        # Zeros instead of uninitialised memory, for the same reason.
        return torch.zeros((blocks, *self._shape), device=self._device)


class TokenRun(Struct, frozen=True):
    """Rows [first, last), which are neighbours in one sequence. The first row is at `position`."""

    slot: int
    first: int
    last: int
    position: int

    def rows_reaching(self, block: int) -> slice | None:
        """Returns the rows that are long enough to have the block, or None. Never returns a single
        row: torch may compute a batch of one row in another way than a larger batch."""
        start = self.first + max(block * BLOCK - self.position, 0)
        return slice(min(start, self.last - 2), self.last) if start < self.last else None


class AttentionBatch:
    """The slot and the position of each row of a pass. Rows past `slots` are padding.

    `aligned` says that row i is slot i, for every slot, so that no rows have to be gathered. Rows
    of slots that have no token are `idle`, and the contents of their slots stay unchanged.
    """

    def __init__(
        self,
        cache: Cache,
        slots: list[int],
        positions: list[int],
        *,
        aligned: bool,
        idle: frozenset[int] = frozenset(),
    ):
        device = cache.keys[0].device
        self.cache = cache
        self.rows = len(slots)
        self.aligned = aligned
        self.slots = torch.tensor(slots, device=device)
        self.positions = torch.tensor(positions, device=device)
        self.blocks = max(positions) // BLOCK + 1
        busy = [row for row in range(self.rows) if row not in idle]
        self._written = torch.tensor(busy, device=device) if idle else slice(self.rows)
        own = self.positions[self._written]
        self._place = (own // BLOCK, self.slots[self._written], slice(None), own % BLOCK)
        self._hidden: dict[int | None, Tensor] = {}
        self.runs: list[TokenRun] = []
        self.single: list[Tensor] = []
        self.layers_seen = 0
        if not aligned:
            self._divide(slots, positions)

    def _divide(self, slots: list[int], positions: list[int]) -> None:
        """Divides the rows. Long runs share their keys and values, and every other row gets its
        own copy. For each block, `single` has those other rows that are long enough to have the
        block."""
        runs = _runs(slots, positions)
        self.runs = [run for run in runs if run.last - run.first >= _MIN_SHARED_ROWS]
        alone = [
            row
            for run in runs
            if run.last - run.first < _MIN_SHARED_ROWS
            for row in range(run.first, run.last)
        ]
        for block in range(self.blocks):
            rows = [row for row in alone if positions[row] >= block * BLOCK]
            # A single row is computed twice, for the same reason as in a run.
            rows = rows * 2 if len(rows) == 1 else rows
            self.single.append(torch.tensor(rows, dtype=torch.long, device=self.slots.device))

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Writes keys and values [rows, heads, size] to the places of their sequences."""
        self.cache.keys[layer][self._place] = keys[self._written]
        self.cache.values[layer][self._place] = values[self._written]

    def mask(self, window: int | None) -> Tensor:
        """Returns which positions each row must not see, as [blocks, rows, 1, 1, BLOCK]. All layers
        share this mask."""
        if window not in self._hidden:
            device = self.positions.device
            place = torch.arange(self.blocks * BLOCK, device=device).view(-1, 1, 1, 1, BLOCK)
            own = self.positions.view(1, -1, 1, 1, 1)
            mask = place > own
            self._hidden[window] = mask if window is None else mask | (place <= own - window)
        return self._hidden[window]


@contextmanager
def use_batch(batch: AttentionBatch) -> Iterator[None]:
    """Lets this thread run the model on this batch."""
    _current.batch = batch
    try:
        yield
    finally:
        _current.batch = None


def register() -> None:
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend)


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Computes attention as transformers calls it: query [1, heads, rows, size], result [1, rows,
    heads, size]."""
    for name in _UNKNOWN_ARGUMENTS:
        if options.get(name) is not None:
            raise ValueError(f"its attention uses {name}, which this engine's does not have")
    batch: AttentionBatch = _current.batch
    rows, layer = batch.rows, module.layer_idx
    batch.write(layer, key[0].transpose(0, 1), value[0].transpose(0, 1))
    heads, size = key.shape[1], key.shape[3]
    factor = scaling if scaling is not None else size**-0.5
    queries = (query[0].transpose(0, 1)[:rows] * factor).reshape(rows, heads, -1, size)
    work = _attend_aligned if batch.aligned else _attend_gathered
    result = work(batch, layer, queries, sliding_window)
    out = torch.zeros_like(query[0].transpose(0, 1), memory_format=torch.contiguous_format)
    out[:rows] = result.reshape(rows, -1, size)
    batch.layers_seen += 1
    return out[None], None


def _attend_aligned(
    batch: AttentionBatch, layer: int, queries: Tensor, window: int | None
) -> Tensor:
    """Computes attention for a batch in which row i is slot i: all blocks of all slots in one
    product, directly from the cache."""
    rows, heads, group, size = queries.shape
    blocks = batch.blocks
    keys = batch.cache.keys[layer][:blocks].view(-1, BLOCK, size)
    values = batch.cache.values[layer][:blocks].view(-1, BLOCK, size)
    expanded = queries.expand(blocks, -1, -1, -1, -1).reshape(-1, group, size)
    scores = torch.bmm(expanded, keys.transpose(1, 2)).view(blocks, rows, heads, group, BLOCK)
    weights = _weights(scores, batch.mask(window))
    parts = torch.bmm(weights.view(-1, group, BLOCK), values).view(blocks, *queries.shape)
    sums = weights.sum(-1, keepdim=True)
    total, mass = parts[0], sums[0]
    for block in range(1, blocks):
        total = total + parts[block]
        mass = mass + sums[block]
    return total / mass


def _attend_gathered(
    batch: AttentionBatch, layer: int, queries: Tensor, window: int | None
) -> Tensor:
    """Computes attention for any rows, block by block. A block's product has only the rows that are
    long enough to have the block."""
    scores = queries.new_full((batch.blocks, *queries.shape[:3], BLOCK), float("-inf"))
    for block in range(batch.blocks):
        keys = batch.cache.keys[layer][block]
        _products(batch, block, queries, keys, out=scores[block], flip=True)
    weights = _weights(scores, batch.mask(window))
    sums = weights.sum(-1, keepdim=True)
    total, mass = torch.zeros_like(queries), sums[0]
    for block in range(batch.blocks):
        part = torch.zeros_like(queries)
        values = batch.cache.values[layer][block]
        _products(batch, block, weights[block], values, out=part, flip=False)
        total = total + part
        mass = mass + sums[block] if block else mass
    return total / mass


def _products(
    batch: AttentionBatch, block: int, left: Tensor, right: Tensor, *, out: Tensor, flip: bool
) -> None:
    """Multiplies each row with its slot's matrix of the block: [rows, heads, group, n] × [slots,
    heads, n, m] → [rows, heads, group, m]. Always uses a batch of products of one shape.

    `flip` says that the matrices are to be transposed. They keep their layout in memory, here as in
    the aligned case, because the layout decides how a product is computed.
    """
    rows = batch.single[block]
    if len(rows):
        own = _transpose_if(right.index_select(0, batch.slots[rows]).flatten(0, 1), flip)
        product = torch.bmm(left.index_select(0, rows).flatten(0, 1), own)
        out.index_copy_(0, rows, product.view(len(rows), *out.shape[1:]))
    for run in batch.runs:
        if (part := run.rows_reaching(block)) is None:
            continue
        for head in range(left.shape[1]):
            shared = right[run.slot, head].expand(part.stop - part.start, -1, -1)
            out[part, head] = torch.bmm(left[part, head], _transpose_if(shared, flip))


def _transpose_if(matrices: Tensor, flip: bool) -> Tensor:
    return matrices.transpose(1, 2) if flip else matrices


def _runs(slots: list[int], positions: list[int]) -> list[TokenRun]:
    runs: list[TokenRun] = []
    for row, (slot, position) in enumerate(zip(slots, positions, strict=True)):
        last = runs[-1] if runs else None
        if last and last.slot == slot and last.position + row - last.first == position:
            runs[-1] = TokenRun(slot, last.first, row + 1, last.position)
        else:
            runs.append(TokenRun(slot, row, row + 1, position))
    return runs


def _weights(scores: Tensor, mask: Tensor) -> Tensor:
    scores = scores.masked_fill_(mask, float("-inf"))
    return (scores - scores.amax((0, -1), keepdim=True)).exp_()
