"""Runs passes for a model that cannot share a batch. Each sequence runs by itself.

Examples are a mixture of experts, a model with its own attention, and a state-space model. The
effect of a batch on a sequence's bits is unknown, so there is no batch. A sequence's results come
only from its own ids, in one of two ways. A trial at start-up chooses the way:

- With the model's own memory of the earlier tokens. The tokens of every full block of `stride` are
  read at once, from the memory of the blocks before. The tokens after the last full block are read
  one by one. A block that fills up during decoding is read again as a whole. So the way to any
  token is the same for every request and after every interruption: a memory is a pure function of
  the tokens that it has seen, and a copy is as good.
- Without memory, the whole sequence is computed anew for each token. This is slow and simple.

The module knows tokens, slots and positions, as `batched` does, but no layers.
"""

import copy
import inspect
from collections.abc import Sequence
from typing import Any

import torch
from msgspec import Struct
from torch import Tensor

from holdfast.embedded.model.batched import Row
from holdfast.embedded.model.load import LoadedModel

STRIDE = 16
"""The tokens in a block. This number is part of the arithmetic: it decides which tokens are
computed together.
"""
_MEMORIES = ("past_key_values", "cache_params", "state")
"""The names that models give to the memory that they return and take again."""

Held = dict[str, Any]
"""A model's memory, by the name under which the model takes it. Models write into their memory."""


class Memory(Struct, frozen=True):
    """The model's memory of the first `length` tokens of a sequence.

    `before` is the memory of the first `start` tokens, which are whole blocks. A model gets only
    copies of `before`, so it may be shared.
    """

    length: int = 0
    held: Held = {}
    start: int = 0
    before: Held = {}

    def copy(self) -> "Memory":
        return Memory(self.length, _copy(self.held), self.start, self.before)

    def of_blocks(self) -> "Memory":
        """Returns the memory of the whole blocks only."""
        if self.length == self.start:
            return self
        return Memory(self.start, _copy(self.before), self.start, self.before)


class SlotMemory:
    """One slot: its tokens, the memory of the tokens that were run, and the memory just before the
    end of its prompt. Other requests with the same prompt begin from this second memory."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.memory = Memory()
        self.prompt = Memory()

    def at(self, position: int) -> Memory:
        """Returns a copy of the longest memory that has seen only tokens before a position."""
        known = (self.memory, self.prompt)
        fitting = [memory for memory in known if memory.length <= position]
        fitting += [m.of_blocks() for m in known if m.start <= position < m.length]
        return max(fitting, key=lambda memory: memory.length, default=Memory()).copy()

    def cut(self, position: int) -> None:
        """Forgets the tokens from a position on."""
        if position >= len(self.tokens):
            return
        del self.tokens[position:]
        if self.memory.length > position:
            self.memory = self.at(position)
        if self.prompt.length > position:
            self.prompt = Memory()


class TokenCache:
    """The tokens that each slot has read, in place of `Cache`."""

    def __init__(self, slots: int):
        self.slots = [SlotMemory() for _ in range(slots)]

    def reserve(self, positions: int) -> None:
        """Does nothing, because lists grow by themselves."""

    def copy(self, source: int, target: int, *, positions: int) -> None:
        """Copies the first positions of one slot to another."""
        copied, original = self.slots[target], self.slots[source]
        copied.tokens = original.tokens[:positions]
        copied.memory, copied.prompt = original.at(positions), Memory()

    def clean(self, slot: int) -> None:
        """Clears a slot to remove numbers that are not finite."""
        self.slots[slot] = SlotMemory()


class SoloPasses:
    """Runs one sequence after another. Used from one thread."""

    def __init__(self, model: LoadedModel, *, slots: int):
        self.stride = 0
        """The tokens in a block, or 0 for no memory. Set by `verify_sequential`."""
        self.narrow = slots
        self.cache = TokenCache(slots)
        self._longest = model.max_length
        self._network = model.network
        self._device = next(model.network.parameters()).device
        parameters = inspect.signature(model.network.forward).parameters
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}

    @property
    def room(self) -> int:
        """The largest number of rows of a pass, which is a block for each slot. Without memory,
        only the ends cost time, so the limit is all positions of all slots."""
        return self.narrow * (self.stride or self._longest)

    @property
    def widths(self) -> list[int]:
        return [self.room]

    def run(self, rows: Sequence[Row], ends: Sequence[int]) -> Tensor:
        """Adds the rows to their slots. Returns the logits [len(ends), vocabulary] of the rows that
        `ends` names. `ends` names at most one row of each slot."""
        last, logits = set(ends), {}
        for i, row in enumerate(rows):
            slot = self.cache.slots[row.slot]
            slot.cut(row.position)
            assert len(slot.tokens) == row.position, "a sequence has no gaps"
            slot.tokens.append(row.token)
            if i in last:
                read_in = i > 0 and rows[i - 1].slot == row.slot
                logits[i] = self._last(slot, ends_prompt=read_in)
            elif self.stride and len(slot.tokens) % self.stride == 0:
                self._read_blocks(slot, len(slot.tokens))
        return torch.stack([logits[end] for end in ends]) if logits else torch.empty(0)

    def logits(self, tokens: Sequence[int], **options: Any) -> Tensor:
        """Returns the logits [tokens, vocabulary] of a sequence, computed from scratch in one
        pass."""
        with torch.inference_mode():
            answer = self._network(input_ids=self._row(tokens), use_cache=False, **options)
        logit: Tensor = answer.logits[0]
        return logit

    def _last(self, slot: SlotMemory, *, ends_prompt: bool) -> Tensor:
        """Returns the logits after the last token, which is always read by itself."""
        if not self.stride:
            return self.logits(slot.tokens, **self._last_only)[-1]
        before = len(slot.tokens) - 1
        self._read_blocks(slot, before - before % self.stride)
        for token in slot.tokens[slot.memory.length : before]:
            self._step(slot, token)
        if ends_prompt:
            slot.prompt = slot.memory.copy()
        return self._step(slot, slot.tokens[-1])

    def _read_blocks(self, slot: SlotMemory, length: int) -> None:
        """Reads the missing whole blocks up to `length`."""
        if slot.memory.start >= length:
            return
        memory = slot.memory.of_blocks()
        held, tokens = memory.held, slot.tokens
        for start in range(memory.length, length, self.stride):
            held, _ = self._read(tokens[start : start + self.stride], held)
        aside = _copy(held) if self.stride > 1 else {}
        slot.memory = Memory(length, held, length, aside)

    def _step(self, slot: SlotMemory, token: int) -> Tensor:
        memory = slot.memory
        held, logits = self._read([token], memory.held)
        length = memory.length + 1
        # With a stride of 1, every block is whole at once.
        start, before = (length, {}) if self.stride == 1 else (memory.start, memory.before)
        slot.memory = Memory(length, held, start, before)
        return logits

    def _read(self, tokens: Sequence[int], held: Held) -> tuple[Held, Tensor]:
        """Returns the memory after these tokens, and the last logits. The model may write into
        `held`, so the caller must not use `held` again."""
        with torch.inference_mode():
            answer = self._network(
                input_ids=self._row(tokens), use_cache=True, **held, **self._last_only
            )
        kept = {name: getattr(answer, name, None) for name in _MEMORIES}
        logits: Tensor = answer.logits[0, -1]
        return {name: value for name, value in kept.items() if value is not None}, logits

    def _row(self, tokens: Sequence[int]) -> Tensor:
        return torch.tensor([list(tokens)], device=self._device)


def _copy(held: Held) -> Held:
    with torch.inference_mode():
        return copy.deepcopy(held)
