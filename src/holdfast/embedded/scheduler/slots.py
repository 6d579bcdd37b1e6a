"""The slots of the cache: which are taken, and what the free ones still hold.

Keys and values are a pure function of the tokens before them (see `attention`), so a new request
may take over what an earlier one left, as far as their tokens agree: the bits are the same. A
conversation's next turn finds its own beginning this way.
"""

from collections.abc import Sequence

from holdfast.records.encoding.tokens import common_prefix


class CacheSlots:
    """Slots 0 … count - 1."""

    def __init__(self, count: int):
        self.count = count
        # In the order in which they became free, so that the oldest is overwritten first.
        self._free: dict[int, list[int]] = {slot: [] for slot in range(count)}

    @property
    def any_free(self) -> bool:
        return bool(self._free)

    def take(self, ids: Sequence[int]) -> tuple[int, int]:
        """The free slot that has most of these tokens, and how many.

        At least one token is always left to compute, since its logits are needed."""
        prompt = list(ids)[:-1]
        shared = {slot: common_prefix(held, prompt) for slot, held in self._free.items()}
        slot = max(shared, key=shared.__getitem__)
        del self._free[slot]
        return slot, shared[slot]

    def release(self, slot: int, held: Sequence[int]) -> None:
        """The slot is free, and holds the keys and values of these tokens."""
        assert slot not in self._free, "a slot is released once"
        self._free[slot] = list(held)

    def forget(self) -> None:
        """The weights have changed: what the free slots hold is of no use."""
        for slot in self._free:
            self._free[slot] = []
