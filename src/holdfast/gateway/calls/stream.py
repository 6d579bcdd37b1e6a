"""A call's answer while it is sampled, as the connections that wait for it receive it.

Everything that is sent is durable (I1): each part of a reply is sent when its draft is recorded. So
a reply whose beginning was sent is not lost when a process dies: the next attempt to sample it goes
on from there, and a repeated request gets the same beginning. The end is sent when the whole reply
is recorded.
"""

import asyncio
from collections.abc import Callable, Sequence

from msgspec import Struct

from holdfast.gateway.protocol.messages import AnswerDelta, Opening
from holdfast.policy.policy import Draft
from holdfast.policy.rendering.parse_stream import Channel, LiveMessage
from holdfast.records.encoding.tokens import unpack_ids
from holdfast.records.history import History
from holdfast.rollout.replay.generate_step import DraftListener, GenerateStep
from holdfast.rollout.replay.speaker import Speaker


class DraftedCall(Struct, frozen=True):
    """A call of which only a beginning is durable."""

    number: int
    """Of its steps."""
    created: int


def drafted_calls(history: History) -> dict[tuple[bytes, int], DraftedCall]:
    """By key and occurrence, as recorded calls are."""
    return {
        (draft.call, draft.occurrence): DraftedCall(int(path.partition(".")[0]), draft.created)
        for path, draft in history.drafts.items()
        if draft.call
    }


class Pace(Struct, frozen=True):
    """How much is made durable and sent at once."""

    tokens: int = 0
    """0: nothing before the end."""
    seconds: float | None = None


class LiveAnswer:
    """The answer of one call. Connections come and go; each gets all of it."""

    def __init__(self) -> None:
        self.opening: Opening | None = None
        self._deltas: list[AnswerDelta] = []
        self._more: asyncio.Future[None] | None = None

    def audiences(
        self,
        turns: Sequence[GenerateStep],
        speaker: Speaker,
        *,
        opening: Opening,
        pace: Pace,
        call: bytes,
        occurrence: int,
    ) -> "Sequence[DraftListener | None]":
        """One for each choice; None where nothing is durable before the end."""
        if not pace.tokens:
            return [None] * len(turns)
        self.opening = opening
        return [
            DraftListener(
                _Choice(index, speaker, turn, self._publish).receive,
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
    def more(self) -> "asyncio.Future[None]":
        """Done when there are more deltas."""
        if self._more is None:
            self._more = asyncio.get_running_loop().create_future()
        return self._more

    def forget(self) -> None:
        """The whole answer is ready, and takes their place."""
        self._deltas = []

    def _publish(self, deltas: Sequence[AnswerDelta]) -> None:
        self._deltas += deltas
        more, self._more = self._more, None
        if more is not None:
            more.set_result(None)


class _Choice:
    """One reply of a call."""

    def __init__(
        self,
        index: int,
        speaker: Speaker,
        turn: GenerateStep,
        publish: Callable[[Sequence[AnswerDelta]], None],
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
        self._publish = publish

    def receive(self, draft: Draft) -> None:
        if draft.start != self._known:
            # The engine took tokens back that were sent. What replaces them is sent at the end, if
            # it begins in the same way.
            self._message.is_over = True
            return
        ids = unpack_ids(draft.ids)
        self._known += len(ids)
        if parts := self._message.take(ids):
            self._publish(
                [
                    AnswerDelta(self._index, text, channel is Channel.REASONING)
                    for channel, text in parts
                ]
            )
