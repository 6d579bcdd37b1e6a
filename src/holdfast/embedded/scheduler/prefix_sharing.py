"""Prompts that begin alike are read once, by the first; the others copy its keys and values.

The samples of one task arrive together with the same prompt. Keys and values are a pure function of
the tokens before them (see `passes`), so a copy has the bits that computing them would have given.

A follower is held out of the passes until its leader is far enough. Leaders come before their
followers, so somebody always goes on; a leader that leaves hands over what it has.
"""

from collections.abc import Sequence

from holdfast.embedded.model.kv_cache import Cache
from holdfast.embedded.model.sequential import TokenCache
from holdfast.embedded.scheduler.generation import Generation
from holdfast.embedded.scheduler.slots import agreeing

WORTH = 32
"""Tokens from which a copy is worth the wait."""


class Sharing:
    """Who follows whom. Used in the engine's thread."""

    def __init__(self, cache: Cache | TokenCache):
        self._cache = cache
        self._following: dict[Generation, tuple[Generation, int]] = {}

    def join(self, one: Generation, running: Sequence[Generation]) -> None:
        """A newcomer follows whichever generation in flight begins most like it."""
        wanted, best = one.ids[:-1], one.computed + WORTH - 1
        for other in running:
            if not other.mixed and (count := agreeing(other.ids, wanted)) > best:
                best = count
                self._following[one] = (other, count)

    def free(self, running: Sequence[Generation]) -> list[Generation]:
        """Those that go on by themselves, after handing over what has become ready."""
        for one, (leader, count) in list(self._following.items()):
            if leader.computed >= count:
                self._hand_over(one)
        return [one for one in running if one not in self._following]

    def leave(self, one: Generation) -> None:
        """It is finished or unwanted; its place still holds what it held."""
        self._following.pop(one, None)
        for follower in [f for f, (leader, _) in self._following.items() if leader is one]:
            self._hand_over(follower)

    def dissolve(self) -> None:
        """Other weights: everybody goes on alone."""
        self._following.clear()

    def _hand_over(self, one: Generation) -> None:
        leader, count = self._following.pop(one)
        count = min(count, leader.computed)
        if not leader.mixed and count > one.computed:
            self._cache.copy(leader.slot, one.slot, positions=count)
            one.computed = count
