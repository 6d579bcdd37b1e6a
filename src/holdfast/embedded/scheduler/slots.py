"""Knows which slots of the cache are taken, and which tokens the free slots still hold.

Keys and values are a pure function of the tokens before them (see `attention`). So a new request
may take over the cache of an earlier one as far as their tokens agree, and gets the same bits. In
this way, a conversation's next turn finds its own beginning.

The samples of one task arrive together with the same prompt. A leader reads a common beginning
once, and its followers copy the keys and values. A follower joins no pass until its leader has
computed enough. Leaders come before their followers, so at least one of them can compute. A leader
that leaves hands over its keys and values.
"""

from collections.abc import Sequence

from holdfast.embedded.model.attention import Cache
from holdfast.embedded.model.sequential import TokenCache
from holdfast.embedded.scheduler.generation import Generation
from holdfast.records.encoding.tokens import common_prefix


class CacheSlots:
    """The slots 0 … count - 1 of the cache."""

    def __init__(self, count: int):
        self.count = count
        # In the order in which they became free, so that the oldest is overwritten first.
        self._free: dict[int, list[int]] = {slot: [] for slot in range(count)}

    @property
    def any_free(self) -> bool:
        return bool(self._free)

    def take(self, ids: Sequence[int]) -> tuple[int, int]:
        """Takes the free slot that holds the longest beginning of these tokens. Returns the slot
        and the length of that beginning. At least the last token is left to compute, because its
        logits are needed."""
        prompt = list(ids)[:-1]
        shared = {slot: common_prefix(held, prompt) for slot, held in self._free.items()}
        slot = max(shared, key=shared.__getitem__)
        del self._free[slot]
        return slot, shared[slot]

    def release(self, slot: int, held: Sequence[int]) -> None:
        """Frees the slot, which holds the keys and values of these tokens."""
        assert slot not in self._free, "a slot is released once"
        self._free[slot] = list(held)

    def forget(self) -> None:
        """Forgets the contents of the free slots, because the weights have changed."""
        for slot in self._free:
            self._free[slot] = []


MIN_SHARED_TOKENS = 32
"""The number of tokens from which a copy is worth the wait."""


class PrefixSharing:
    """Knows which generation waits for another generation to read their common beginning. Used in
    the engine's thread."""

    def __init__(self, cache: Cache | TokenCache):
        self._cache = cache
        self._leaders: dict[Generation, tuple[Generation, int]] = {}

    def join(self, generation: Generation, running: Sequence[Generation]) -> None:
        """Lets a new generation follow the one in flight with the longest common prefix."""
        prompt, best = generation.ids[:-1], generation.computed + MIN_SHARED_TOKENS - 1
        for other in running:
            if not other.mixed and (count := common_prefix(other.ids, prompt)) > best:
                best = count
                self._leaders[generation] = (other, count)

    def free(self, running: Sequence[Generation]) -> list[Generation]:
        """Copies the common beginnings that leaders have computed to their followers. Then returns
        the generations that follow no leader."""
        for follower, (leader, count) in list(self._leaders.items()):
            if leader.computed >= count:
                self._hand_over(follower)
        return [generation for generation in running if generation not in self._leaders]

    def leave(self, generation: Generation) -> None:
        """Removes a finished or cancelled generation, whose slot still holds its keys and
        values."""
        self._leaders.pop(generation, None)
        for follower in [f for f, (leader, _) in self._leaders.items() if leader is generation]:
            self._hand_over(follower)

    def dissolve(self) -> None:
        """Ends all sharing, because the weights have changed."""
        self._leaders.clear()

    def _hand_over(self, follower: Generation) -> None:
        leader, count = self._leaders.pop(follower)
        count = min(count, leader.computed)
        if not leader.mixed and count > follower.computed:
            self._cache.copy(leader.slot, follower.slot, positions=count)
            follower.computed = count
