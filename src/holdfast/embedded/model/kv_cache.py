"""Keys and values of every slot, in blocks.

The blocks are the outermost dimension: block b of all slots is one piece of memory, so that the
decoding of all slots multiplies straight out of the cache, and growing is appending blocks. Memory
follows the longest sequence that was ever held, not the longest that is allowed.
"""

import torch
from torch import Tensor

BLOCK = 64
"""Positions in a block. Part of the arithmetic: it decides in which order sums are made."""


class Cache:
    """For each layer a tensor [blocks, slots, heads, BLOCK, size] of keys and one of values."""

    def __init__(self, *, layers: int, slots: int, heads: int, size: int, device: torch.device):
        self._shape = (slots, heads, BLOCK, size)
        self._device = device
        self.blocks = 0
        self.keys = [self._empty(0) for _ in range(layers)]
        self.values = [self._empty(0) for _ in range(layers)]

    def reserve(self, positions: int) -> None:
        """Makes room for sequences of so many positions."""
        needed = -(-positions // BLOCK)
        if needed <= self.blocks:
            return
        more = self._empty(max(needed, 2 * self.blocks) - self.blocks)
        for tensors in (self.keys, self.values):
            for layer, tensor in enumerate(tensors):
                tensors[layer] = torch.cat((tensor, more))
        self.blocks += len(more)

    def copy(self, source: int, target: int, *, positions: int) -> None:
        """The first positions of one slot become those of another."""
        blocks = -(-positions // BLOCK)
        for tensor in (*self.keys, *self.values):
            tensor[:blocks, target] = tensor[:blocks, source]

    def clean(self, slot: int) -> None:
        """Removes numbers that are not finite: even a masked one spoils a sum, as 0 × NaN."""
        for tensor in (*self.keys, *self.values):
            tensor[:, slot] = 0.0

    def _empty(self, blocks: int) -> Tensor:
        # Zeros, not uninitialised memory, for the same reason.
        return torch.zeros((blocks, *self._shape), device=self._device)
