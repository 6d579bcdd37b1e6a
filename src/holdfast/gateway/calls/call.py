"""The calls of an agent, from a request to the connections that wait for its answer.

This module finds the recorded call that a request repeats. It holds what is needed to sample an
answer, the answer while it is sampled, and the connections that wait for it.

Everything that is sent is durable (I1): each part of a reply is sent when its draft is recorded. So
if a process dies, the part of a reply that was sent is not lost. The next attempt to sample the
reply continues from there, and a repeated request gets the same beginning. The end is sent when the
whole reply is recorded.
"""

import asyncio
import hashlib
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct

from holdfast.gateway.calls import digest
from holdfast.gateway.calls.digest import ToolSet
from holdfast.gateway.calls.rejections import attempt_over
from holdfast.gateway.protocol.messages import (
    Answer,
    AnswerDelta,
    GenerationRequest,
    Opening,
    RequestRejected,
)
from holdfast.policy.policy import Draft
from holdfast.policy.rendering.parse_stream import Channel, LiveMessage
from holdfast.records.encoding.tokens import unpack_ids
from holdfast.records.history import History
from holdfast.records.message import Message
from holdfast.records.sampling import Sampling
from holdfast.records.step import Called, Generated, call_turn
from holdfast.rollout.replay.generate_step import DraftListener, GenerateStep
from holdfast.rollout.replay.prompt import Prompt
from holdfast.rollout.replay.session import Session
from holdfast.rollout.replay.speaker import Speaker

Result = TypeVar("Result")
Call = TypeVar("Call", bound="AgentCall[Any]")


class DraftedCall(Struct, frozen=True):
    """A call of which only the beginning is durable."""

    number: int
    """The number with which the paths of its steps begin."""
    created: int


def drafted_calls(history: History) -> dict[tuple[bytes, int], DraftedCall]:
    """Returns the drafted calls by key and occurrence, like the recorded calls."""
    return {
        (draft.call, draft.occurrence): DraftedCall(int(path.partition(".")[0]), draft.created)
        for path, draft in history.drafts.items()
        if draft.call
    }


class Pace(Struct, frozen=True):
    """The number of tokens, or seconds of sampling, that are made durable and sent together."""

    tokens: int = 0
    """Tokens sent together; 0 sends the whole reply at its end."""
    seconds: float | None = None


class LiveAnswer:
    """The answer of one call while it is sampled. Connections can join at any time, and each gets
    the whole answer."""

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
        call: "CallId",
    ) -> "Sequence[DraftListener]":
        """Returns one listener for each choice, which publishes the drafts of its step."""
        self.opening = opening
        return [
            DraftListener(
                _Choice(index, speaker, turn, self._publish).receive,
                pace.tokens,
                pace.seconds,
                *call,
                opening.created,
            )
            for index, turn in enumerate(turns)
        ]

    def since(self, count: int) -> Sequence[AnswerDelta]:
        return self._deltas[count:]

    @property
    def more(self) -> "asyncio.Future[None]":
        """Returns a future that is done when there are more deltas."""
        if self._more is None:
            self._more = asyncio.get_running_loop().create_future()
        return self._more

    def forget(self) -> None:
        """Drops the deltas, because the whole answer is ready and replaces them."""
        self._deltas = []

    def _publish(self, deltas: Sequence[AnswerDelta]) -> None:
        self._deltas += deltas
        more, self._more = self._more, None
        if more is not None:
            more.set_result(None)


class _Choice:
    """One reply of a call while it is sampled. Publishes its drafts as deltas."""

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
            # The engine took back tokens that were sent. If their replacement begins in the same
            # way, the rest of it is sent at the end.
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


class CallId(NamedTuple):
    """Identifies a call of a trajectory."""

    key: bytes
    occurrence: int


class AgentCall(Struct, Generic[Result], eq=False):
    """One call of an attempt, and how many connections wait for its result."""

    key: bytes
    """The digest of its content."""
    job: "asyncio.Task[Result]"
    subscribers: int = 0
    delivered: bool = False
    """Whether a connection received the whole result."""


class CallTable(Generic[Call]):
    """The calls of one attempt, by their content, and by the names that clients give them."""

    def __init__(self) -> None:
        self._by_key: defaultdict[bytes, list[Call]] = defaultdict(list)
        self._named: dict[str, Call] = {}

    def __iter__(self) -> Iterator[Call]:
        return (call for calls in self._by_key.values() for call in calls)

    def count(self, key: bytes) -> int:
        return len(self._by_key[key])

    def repeated(self, key: bytes, *, name: str = "", again: bool = False) -> Call | None:
        """Returns the call that a request repeats, or None if the request is a new call.

        If a call has the name `name`, returns that call. Otherwise, returns a call with the same
        content whose result no connection has received or waits for. With `again`, it may also
        return the last call with this content. Raises `RequestRejected` if the name belongs to a
        call with other content.
        """
        if name in self._named:
            if self._named[name].key != key:
                message = "this idempotency key was given to another request"
                raise RequestRejected(400, message, code="idempotency_key_in_use")
            return self._named[name]
        calls = self._by_key[key]
        unreceived = next(
            (call for call in calls if not call.subscribers and not call.delivered), None
        )
        return calls[-1] if unreceived is None and again and calls else unreceived

    def add(self, call: Call) -> Call:
        self._by_key[call.key].append(call)
        return call

    def name(self, call: Call, name: str) -> None:
        """Makes later requests with this name repeat the call."""
        self._named[name] = call

    @property
    def is_waited_for(self) -> bool:
        return any(call.subscribers for call in self)

    async def cancel(self, *, after: float = 0.0) -> None:
        """Cancels all calls. Calls that still run have `after` seconds to end first."""
        jobs = [call.job for call in self]
        if after and (running := [job for job in jobs if not job.done()]):
            await asyncio.wait(running, timeout=after)
        for job in jobs:
            job.cancel()
        if jobs:
            await asyncio.wait(jobs)
        for job in jobs:
            _ = job.cancelled() or job.exception()


class Subscription(Generic[Call]):
    """One connection that waits for the result of a call."""

    def __init__(self, call: Call):
        self.call = call
        call.subscribers += 1

    async def result(self) -> Any:
        """Returns the result. Cancelling this method ends the waiting, not the call."""
        try:
            return await asyncio.shield(self.call.job)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
            raise attempt_over() from None

    def leave(self, *, delivered: bool | None) -> None:
        """Ends the subscription. `delivered` is None if it is unknown whether the result arrived; a
        repeated request then gets the same answer."""
        self.call.subscribers -= 1
        if delivered:
            self.mark_delivered()

    def mark_delivered(self) -> None:
        """Notes that a result did arrive, after it was unknown whether it would."""
        self.call.delivered = True


class SampledCall(AgentCall[Answer], kw_only=True, eq=False):
    id: CallId
    live: LiveAnswer


class PendingCall(Struct, frozen=True, eq=False):
    """A call with all that is needed to sample and record its answer."""

    request: GenerationRequest
    wire: str
    digests: list[bytes]
    """The digests of the conversation after each of its messages."""
    sampling: Sampling
    tools: ToolSet
    id: CallId
    live: LiveAnswer

    @property
    def seed_from(self) -> str:
        """Returns the text from which seeds and ids of the call are derived. It does not depend on
        timing."""
        return call_turn(*self.id)

    def turn(
        self,
        session: Session,
        path: str,
        *,
        prompt: Prompt,
        ids: "array[int]",
        messages: Sequence[Message],
        added: tuple[Message | str, ...],
        bare: bool = False,
    ) -> GenerateStep:
        """Returns the generation step of one choice.

        If the agent gives a seed, an equal request samples the same reply again in this trajectory.
        The seed differs between trajectories, because a group must not consist of n copies of one
        sample.
        """
        choice, seed = path.split(".")[1], None
        if self.request.seed is not None:
            # The seed that the agent sent is part of the key.
            seed = session.seed_at(f"{self.id.key.hex()}.seed.{choice}", always=True)
        return GenerateStep(
            path=path,
            prompt=prompt,
            ids=ids,
            sampling=self.sampling,
            tools=self.request.tools,
            messages=tuple(messages),
            added=added,
            seed_from=f"{self.seed_from}.{choice}",
            seed=seed,
            bare=bare,
        )

    def opening(self, turns: Sequence[GenerateStep], *, trajectory: str, created: int) -> Opening:
        # The choices of a request share its prompt.
        prompts = turns[:: self.request.n]
        return Opening(
            id=hashlib.sha256(f"{trajectory}/{self.seed_from}".encode()).hexdigest()[:24],
            created=created,
            model=self.request.model,
            prompt_tokens=sum(len(turn.ids) for turn in prompts),
            cached_tokens=sum(turn.prompt.keep for turn in prompts),
        )

    def record(self, steps: Sequence[Generated], opening: Opening) -> Called:
        """Returns the record of the call, with the generations that answer it."""
        request, digests = self.request, self.digests
        return Called(
            path=steps[0].path,
            key=self.id.key,
            occurrence=self.id.occurrence,
            choices=tuple(step.path for step in steps),
            beginning=digest.beginning(request.messages, digests),
            conversation=digests[-1] if digests else digest.START,
            tools=self.tools.digest,
            wire=self.wire,
            answer=opening.id,
            created=opening.created,
            model=request.model,
            ignored=request.ignored,
            instructed=request.instructed,
        )
