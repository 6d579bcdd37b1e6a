"""Asked: one call of an agent while it is answered: what it asks, and which call it is."""

import hashlib
from collections.abc import Sequence

from msgspec import Struct

from holdfast.gateway import canonical
from holdfast.gateway.exchange import Ask, Opening
from holdfast.gateway.hearing import Which
from holdfast.gateway.live import Live
from holdfast.gateway.shown_tools import Shown
from holdfast.records.sampling import Sampling
from holdfast.records.step import Called, Generated
from holdfast.rollout.generation import Turn
from holdfast.rollout.session import Session


class Asked(Struct, frozen=True, eq=False):
    ask: Ask
    wire: str
    digests: list[bytes]
    """Of the conversation after each of its messages."""
    sampling: Sampling
    shown: Shown
    which: Which
    live: Live

    @property
    def seed_from(self) -> str:
        """What its samples are drawn from, and its ids made of: nothing that depends on timing."""
        return f"{self.which.key.hex()}.{self.which.occurrence}"

    def seed(self, session: Session, choice: str) -> int | None:
        """Where the agent wants one: asked again with it, the same is sampled in this trajectory.
        Others have others: n copies of one sample are no group."""
        if self.ask.seed is None:
            return None
        # The key is made of the agent's seed, too.
        return session.seed_at(f"{self.which.key.hex()}.seed.{choice}", always=True)

    def opening(self, turns: Sequence[Turn], *, trajectory: str, created: int) -> Opening:
        each = self.ask.n
        return Opening(
            id=hashlib.sha256(f"{trajectory}/{self.seed_from}".encode()).hexdigest()[:24],
            created=created,
            model=self.ask.model,
            # Choices of one prompt share it.
            prompt_tokens=sum(len(turn.ids) for turn in turns[::each]),
            cached_tokens=sum(turn.prompt.keep for turn in turns[::each]),
        )

    def called(self, steps: Sequence[Generated], opening: Opening) -> Called:
        """What is recorded of it, with the generations that answer it."""
        ask, digests = self.ask, self.digests
        return Called(
            path=steps[0].path,
            key=self.which.key,
            occurrence=self.which.occurrence,
            choices=tuple(step.path for step in steps),
            beginning=canonical.beginning(ask.messages, digests),
            conversation=digests[-1] if digests else canonical.START,
            tools=self.shown.digest,
            wire=self.wire,
            answer=opening.id,
            created=opening.created,
            model=ask.model,
            ignored=ask.ignored,
            instructed=ask.instructed,
        )
