"""Asked: one call of an agent while it is answered: what it asks, and which call it is."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from holdfast.gateway.calls import digest
from holdfast.gateway.calls.stream import Live
from holdfast.gateway.calls.tool_schemas import StoredSchemas
from holdfast.gateway.protocol.messages import Answer, AnswerDelta, Ask, Opening, RequestRejected
from holdfast.records.errors import RunStopped
from holdfast.records.sampling import Sampling
from holdfast.records.step import Called, Generated
from holdfast.rollout.replay.generate_step import GenerateStep
from holdfast.rollout.replay.session import Session

Found = TypeVar("Found")


class Which(Struct, frozen=True):
    """Which of a trajectory's calls it is."""

    key: bytes
    occurrence: int
    older: tuple[bytes, int]
    """The same in older records, in whose keys the order of members counted."""

    def name_in(self, known: Mapping[tuple[bytes, int], Found]) -> tuple[bytes, int]:
        """The name under which it is known, if it is."""
        return self.older if self.older in known else (self.key, self.occurrence)


class AgentCall(Struct):
    """One request of an attempt, and those that ask it again."""

    which: Which
    job: "asyncio.Task[Answer]"
    live: Live
    listeners: int = 0
    delivered: bool = False
    """Whether somebody heard the whole answer."""


class Hearing:
    def __init__(
        self,
        call: AgentCall,
        *,
        on_leave: Callable[[], None],
        on_answer: Callable[[Answer], Awaitable[None]],
        on_refused: Callable[[RequestRejected], Awaitable[None]],
    ):
        """`on_answer`, `on_refused`: before the connection is told of either."""
        self._call = call
        self._on_leave = on_leave
        self._on_answer = on_answer
        self.refused = on_refused
        self._heard = 0
        call.listeners += 1

    async def answer(self) -> Answer:
        """Cancelling it ends the waiting, not the sampling."""
        try:
            found = await asyncio.shield(self._call.job)
        except RunStopped as stopped:
            raise RequestRejected(503, str(stopped), code="stopping") from stopped
        await self._on_answer(found)
        return found

    @property
    def is_ready(self) -> bool:
        return self._call.job.done()

    @property
    def opening(self) -> Opening | None:
        """What is known of an answer that is told while it is sampled."""
        return self._call.live.opening

    async def news(self, seconds: float) -> Sequence[AnswerDelta]:
        """What is durable and was not heard yet; nothing after so many seconds, or when the answer
        is there."""
        live, job = self._call.live, self._call.job
        if not self.is_ready and not live.since(self._heard):
            wanted: set[asyncio.Future[Any]] = {job, live.news}
            await asyncio.wait(wanted, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        found = () if self.is_ready else live.since(self._heard)
        self._heard += len(found)
        return found

    def leave(self, *, delivered: bool) -> None:
        self._call.listeners -= 1
        self._call.delivered = self._call.delivered or delivered
        self._on_leave()

    def miss(self) -> None:
        """What was taken for delivered did not arrive."""
        self._call.delivered = False


class PendingCall(Struct, frozen=True, eq=False):
    ask: Ask
    wire: str
    digests: list[bytes]
    """Of the conversation after each of its messages."""
    sampling: Sampling
    shown: StoredSchemas
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

    def opening(self, turns: Sequence[GenerateStep], *, trajectory: str, created: int) -> Opening:
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
            beginning=digest.beginning(ask.messages, digests),
            conversation=digests[-1] if digests else digest.START,
            tools=self.shown.digest,
            wire=self.wire,
            answer=opening.id,
            created=opening.created,
            model=ask.model,
            ignored=ask.ignored,
            instructed=ask.instructed,
        )
