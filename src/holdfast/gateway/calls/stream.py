"""Live: a call while it is sampled, as those who wait for it are told.

What is told is durable (I1): each part of a reply is told when its draft is. So a reply whose
beginning was told is not lost with whatever dies: who samples it next goes on from there, and who
asks for it again is told the same beginning. The end is told when the whole reply is recorded.
"""

import asyncio
from collections.abc import Callable, Sequence

from msgspec import Struct

from holdfast.gateway.protocol.messages import AnswerDelta, Opening
from holdfast.policy.policy import Draft
from holdfast.policy.rendering.parse_stream import Channel, LiveMessage
from holdfast.records.history import History
from holdfast.records.tokens import unpack_ids
from holdfast.rollout.replay.generate_step import Audience, GenerateStep
from holdfast.rollout.replay.speaker import Speaker


class Begun(Struct, frozen=True):
    """A call of which a beginning is durable, and nothing more."""

    number: int
    """Of its steps."""
    created: int


def begun_in(history: History) -> dict[tuple[bytes, int], Begun]:
    """By key and occurrence, as recorded calls are."""
    return {
        (draft.call, draft.occurrence): Begun(int(path.partition(".")[0]), draft.created)
        for path, draft in history.drafts.items()
        if draft.call
    }


class Pace(Struct, frozen=True):
    """How much is made durable and told at once."""

    tokens: int = 0
    """0: nothing before the end."""
    seconds: float | None = None


class Live:
    """One call. Those who listen come and go; each hears all of it."""

    def __init__(self) -> None:
        self.opening: Opening | None = None
        self._deltas: list[AnswerDelta] = []
        self._news: asyncio.Future[None] | None = None

    def audiences(
        self,
        turns: Sequence[GenerateStep],
        speaker: Speaker,
        *,
        opening: Opening,
        pace: Pace,
        call: bytes,
        occurrence: int,
    ) -> "Sequence[Audience | None]":
        """One for each choice, in which it is heard; none where nothing is durable on the way."""
        if not pace.tokens:
            return [None] * len(turns)
        self.opening = opening
        return [
            Audience(
                _Choice(index, speaker, turn, self._tell).hear,
                pace.tokens,
                pace.seconds,
                call,
                occurrence,
                opening.created,
            )
            for index, turn in enumerate(turns)
        ]

    def since(self, count: int) -> Sequence[AnswerDelta]:
        return self._deltas[count:]

    @property
    def news(self) -> "asyncio.Future[None]":
        """Done when there are more of them."""
        if self._news is None:
            self._news = asyncio.get_running_loop().create_future()
        return self._news

    def forget(self) -> None:
        """The answer is there: it says the same, and more."""
        self._deltas = []

    def _tell(self, deltas: Sequence[AnswerDelta]) -> None:
        self._deltas += deltas
        news, self._news = self._news, None
        if news is not None:
            news.set_result(None)


class _Choice:
    """One reply of a call."""

    def __init__(
        self,
        index: int,
        speaker: Speaker,
        turn: GenerateStep,
        tell: Callable[[Sequence[AnswerDelta]], None],
    ):
        self._index = index
        self._message = LiveMessage(
            speaker.renderer,
            prompt=turn.ids,
            tools=turn.tools,
            stop=turn.sampling.stop,
            bare=turn.bare,
        )
        self._known = 0
        self._tell = tell

    def hear(self, draft: Draft) -> None:
        if draft.start != self._known:
            # What was told is taken back, since its engine lied. What it is now is told at the end,
            # if it begins in the same way.
            self._message.is_over = True
            return
        ids = unpack_ids(draft.ids)
        self._known += len(ids)
        said = self._message.take(ids)
        if said:
            self._tell(
                [AnswerDelta(self._index, text, one is Channel.REASONING) for one, text in said]
            )
