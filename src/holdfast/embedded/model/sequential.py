"""Passes for a model that cannot share a batch: each sequence is run by itself.

A mixture of experts, an attention of its own, a state-space model: what a batch would do to a
sequence's bits is unknown, so there is no batch. A sequence's results come from its own ids alone,
in one of two ways, and which one is decided by a trial at start-up:

- With the model's own memory of the tokens before. The tokens of every full block of `stride` are
  read at once, from the memory of the blocks before; those after the last full block one by one.
  A block that fills up while it is decoded is read again as a whole. So the way to any token is the
  same for every request and after every interruption: a memory is a pure function of the tokens
  that it has seen, and a copy is as good.
- Without, the whole sequence is computed anew for each token. Slow, and nothing to get wrong.

It knows tokens, slots and positions, as `batched` does, and nothing of layers.
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
"""Tokens in a block. Part of the arithmetic: it decides what is computed together."""
_MEMORIES = ("past_key_values", "cache_params", "state")
"""What models call the memory that they give back and take again."""

Held = dict[str, Any]
"""A model's memory, by the name under which it takes it. Models write into what they are given."""


class Memory(Struct, frozen=True):
    """What the model remembers of the first `length` tokens of a sequence.

    `before` is the memory of the first `start` of them, which are whole blocks. It is given to no
    model, only copies of it are; so it may be shared.
    """

    length: int = 0
    held: Held = {}
    start: int = 0
    before: Held = {}

    def copy(self) -> "Memory":
        return Memory(self.length, _copy(self.held), self.start, self.before)

    def of_blocks(self) -> "Memory":
        """That of its whole blocks only."""
        if self.length == self.start:
            return self
        return Memory(self.start, _copy(self.before), self.start, self.before)


class SlotMemory:
    """One slot: its tokens, the memory of as many of them as were run, and the memory just before
    the end of its prompt, from which others with the same prompt begin."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.memory = Memory()
        self.prompt = Memory()

    def at(self, position: int) -> Memory:
        """A copy of the longest memory that has seen no more than the tokens before a position."""
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
    """What each slot has read, in place of `Cache`."""

    def __init__(self, slots: int):
        self.slots = [SlotMemory() for _ in range(slots)]

    def reserve(self, positions: int) -> None:
        """Nothing to do: lists grow."""

    def copy(self, source: int, target: int, *, positions: int) -> None:
        """The first positions of one slot become those of another."""
        copied, original = self.slots[target], self.slots[source]
        copied.tokens = original.tokens[:positions]
        copied.memory, copied.prompt = original.at(positions), Memory()

    def clean(self, slot: int) -> None:
        """Numbers that are not finite stay nowhere."""
        self.slots[slot] = SlotMemory()


class SoloPasses:
    """Runs one sequence after another. Used from one thread."""

    def __init__(self, model: LoadedModel, *, slots: int):
        self.stride = 0
        """Tokens in a block, 0 for no memory at all. Set by `verify_sequential`."""
        self.narrow = slots
        self.cache = TokenCache(slots)
        self._longest = model.max_length
        self._network = model.network
        self._device = next(model.network.parameters()).device
        parameters = inspect.signature(model.network.forward).parameters
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}

    @property
    def room(self) -> int:
        """The most rows that a pass can have: a block for each slot or, where only the ends cost
        anything, all that there can be."""
        return self.narrow * (self.stride or self._longest)

    @property
    def widths(self) -> list[int]:
        return [self.room]

    def run(self, rows: Sequence[Row], ends: Sequence[int]) -> Tensor:
        """Takes the rows in; gives the logits [len(ends), vocabulary] of the rows that `ends`
        names, no more than one of each slot."""
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
        """The logits of a sequence, computed from scratch in one pass: [tokens, vocabulary]."""
        with torch.inference_mode():
            answer = self._network(input_ids=self._row(tokens), use_cache=False, **options)
        logit: Tensor = answer.logits[0]
        return logit

    def _last(self, slot: SlotMemory, *, ends_prompt: bool) -> Tensor:
        """The logits after the last token, which is always read by itself."""
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
        """Reads what is missing of the whole blocks up to there."""
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
        # Blocks of one are whole at once.
        start, before = (length, {}) if self.stride == 1 else (memory.start, memory.before)
        slot.memory = Memory(length, held, start, before)
        return logits

    def _read(self, tokens: Sequence[int], held: Held) -> tuple[Held, Tensor]:
        """The memory after these tokens, which uses up the one before, and the last logits."""
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
