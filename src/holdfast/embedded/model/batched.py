"""Runs forward passes of fixed shapes.

Every pass is one row of tokens that belong to many sequences, padded to one of a few widths. One
width is `narrow`, which follows the number of slots. The other widths, for few requests and for
long prompts, are used only if a trial at start-up found the same bits. Each linear layer is then
always the same matrix product, and a token's result depends only on its own sequence (see
`attention`).

The module knows tokens, slots and positions, but no requests and no sampling.
"""

from collections.abc import Sequence

import torch
from msgspec import Struct
from torch import Tensor

from holdfast.embedded.model import attention
from holdfast.embedded.model.attention import BLOCK, AttentionBatch, Cache
from holdfast.embedded.model.load import LoadedModel

_WIDE = 256
_SMALL = (4, 16)
_LANES = 32
_IDLE = -1


class Row(Struct, frozen=True):
    """One token at its position."""

    token: int
    slot: int
    position: int


class Passes:
    """Runs passes over the cache of `slots` sequences. Used from one thread."""

    def __init__(self, model: LoadedModel, *, slots: int):
        self.narrow = _narrow(slots)
        self.widths = [self.narrow]
        """The widths in ascending order. `verify_batched` adds the widths other than `narrow`."""
        self.layers_seen = 0
        """How many layers of the last pass called this engine's attention."""
        self._network = model.network
        self._device = next(model.network.parameters()).device
        self.cache = Cache(
            layers=model.layers,
            slots=self.narrow,
            heads=model.heads,
            size=model.head_size,
            device=self._device,
        )

    @property
    def room(self) -> int:
        """The largest number of rows that a pass can have."""
        return self.widths[-1]

    @property
    def other_widths(self) -> list[int]:
        """Widths besides `narrow` that would save work, if their bits are the same."""
        return [*(width for width in _SMALL if width < self.narrow), max(_WIDE, 2 * self.narrow)]

    def run(self, rows: Sequence[Row], ends: Sequence[int]) -> Tensor:
        """Computes the rows' keys and values. Returns the logits [len(ends), vocabulary] of the
        rows that `ends` names. `ends` names at most one row of each slot."""
        self.cache.reserve(max(row.position for row in rows) + 1)
        if len(ends) == len(rows) and self._worth_aligning(rows):
            placed = self._by_slot(rows)
            logits = self._forward(self._batch(placed, aligned=True), placed, range(self.narrow))
            return logits[[rows[end].slot for end in ends]]
        logits = self._forward(self._batch(rows, aligned=False), rows, ends)
        return logits[: len(ends)]

    def _width(self, count: int) -> int:
        return next(width for width in self.widths if width >= count)

    def _worth_aligning(self, rows: Sequence[Row]) -> bool:
        """Returns whether computing all slots costs less than gathering, as for slots of similar
        length."""
        blocks = [row.position // BLOCK + 1 for row in rows]
        fitting = self._width(len(rows)) == self.narrow
        return fitting and 2 * sum(blocks) >= self.narrow * max(blocks)

    def _by_slot(self, rows: Sequence[Row]) -> list[Row]:
        """Returns one row for each slot, in order of slots. A slot without a token gets a row that
        changes nothing in the slot."""
        placed = {row.slot: row for row in rows}
        return [placed.get(slot) or Row(_IDLE, slot, 0) for slot in range(self.narrow)]

    def _batch(self, rows: Sequence[Row], *, aligned: bool) -> AttentionBatch:
        return AttentionBatch(
            self.cache,
            [row.slot for row in rows],
            [row.position for row in rows],
            aligned=aligned,
            idle=frozenset(i for i, row in enumerate(rows) if row.token == _IDLE),
        )

    def _forward(self, batch: AttentionBatch, rows: Sequence[Row], ends: Sequence[int]) -> Tensor:
        padding = [0] * (self._width(len(rows)) - len(rows))
        keep = [*ends, *([0] * (self._width(len(ends)) - len(ends)))]
        tokens = [max(row.token, 0) for row in rows]
        ids = torch.tensor([tokens + padding], device=self._device)
        places = torch.tensor([[row.position for row in rows] + padding], device=self._device)
        with torch.inference_mode(), attention.use_batch(batch):
            answer = self._network(
                input_ids=ids,
                position_ids=places,
                use_cache=False,
                logits_to_keep=torch.tensor(keep, device=self._device),
            )
        self.layers_seen = batch.layers_seen
        logits: Tensor = answer.logits[0]
        return logits


def _narrow(slots: int) -> int:
    """Returns a width at which all rows fill the vector registers completely."""
    if slots > _LANES:
        return -(-slots // _LANES) * _LANES
    return max(4, 1 << (slots - 1).bit_length())
