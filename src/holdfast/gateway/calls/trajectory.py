"""AgentTrajectory is one attempt of a black-box agent. The agent's calls are its steps.

A recorded call is answered from the record. Any other call is sampled once, however many
connections wait for it. The sampling belongs to the trajectory, not to the connection, so a client
that disconnects and repeats its request gets the same answer. Answers are durable before they are
sent (I1).
"""

import asyncio
import itertools
import time
from collections.abc import Coroutine, Sequence
from functools import cached_property
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from holdfast import crashpoint
from holdfast.gateway.calls import digest, unsupported
from holdfast.gateway.calls.answer import TrajectoryLookup, build_answer
from holdfast.gateway.calls.attempt_status import (
    ReceivedAnswers,
    continued_keys,
    received_counts,
    steps_of_last_attempt,
)
from holdfast.gateway.calls.call import (
    CallId,
    CallTable,
    LiveAnswer,
    Pace,
    PendingCall,
    SampledCall,
    Subscription,
    drafted_calls,
)
from holdfast.gateway.calls.digest import ToolSchemas, ToolSet
from holdfast.gateway.calls.prefix_tree import (
    Conversation,
    PrefixTree,
    RecordedImages,
    TreePosition,
)
from holdfast.gateway.calls.raw_prompts import RawPrompts, prompts_of
from holdfast.gateway.calls.rejections import RejectedCalls, as_rejection
from holdfast.gateway.calls.tool_calls import AgentTools
from holdfast.gateway.protocol.messages import (
    Answer,
    AnswerDelta,
    GenerationRequest,
    Opening,
    RequestRejected,
)
from holdfast.off_loop import off_loop
from holdfast.records.errors import RunStopped, Truncated, UsageError
from holdfast.records.sampling import Sampling
from holdfast.records.step import ADDED, Called, Generated
from holdfast.rollout.replay import generate_step
from holdfast.rollout.replay.generate_step import DraftListener, GenerateStep
from holdfast.rollout.replay.session import Session, is_accident
from holdfast.rollout.replay.speaker import Speaker
from holdfast.rollout.tools.tool import Tool

T = TypeVar("T")
_NOT_RECORDED = ("attempt_over", "stopping")
"""Codes of rejections that follow from the end of the attempt."""


async def gather_or_cancel(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Returns the results in order. The first failure, or a cancellation, cancels the other
    work."""
    if len(work) == 1:
        return [await work[0]]
    tasks = [asyncio.ensure_future(coroutine) for coroutine in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


class AgentTrajectory:
    """One attempt of an agent, bound to a key while the attempt lives."""

    def __init__(self, session: Session):
        self.name = session.name
        self.session = session
        self.limit: Truncated | None = None
        """The limit that the policy met, or None."""
        self.broken = asyncio.Event()
        """Set when the attempt cannot go on: the agent has to be started again."""
        self.reward: float | None = None
        self.completed = asyncio.Event()
        self.last_seen = session.clock.elapsed()
        """The time of the agent's last request, or of the last response to it."""
        self._tree = PrefixTree(session.history, session.task)
        self._images = RecordedImages(session.history, session.task)
        self._calls: CallTable[SampledCall] = CallTable()
        self.received = ReceivedAnswers(session)
        self._received_before: dict[bytes, int] = {}
        """For an agent that outlived its gateway: how many answers the agent had received by then,
        for each key."""
        self._continued: set[bytes] = set()
        # Concurrent calls are recorded in any order, and some of them never.
        known = (*session.history.steps, *session.history.drafts)
        taken = (int(path.partition(".")[0]) + 1 for path in known)
        # Not a method of this class: two objects that hold each other would outlive their use.
        self.take_number = itertools.count(max(session.history.calls_ever, *taken, 0)).__next__
        """Returns the next number for a step."""
        self._drafted = drafted_calls(session.history)
        self.rejected_calls = RejectedCalls(session)
        self.pace = Pace()
        """The pace of streams."""
        self._kept_paths: set[str] = set()
        self._closed = False
        recorded = (called.tools for called in session.history.calls.values())
        self._schemas = ToolSchemas(session.blobs, recorded)
        self.lookup = TrajectoryLookup(session)
        self.tools = AgentTools(session, number=self.take_number, on_accident=self.broken.set)
        """The tools that the agent calls through the gateway; none before `set_tools`."""

    def set_tools(
        self, tools: Sequence[Tool], *, made_before: frozenset[str] = frozenset()
    ) -> None:
        """Lets the agent call `tools` from now on. `AgentTools` describes `made_before`."""
        self.tools = AgentTools(
            self.session,
            tools,
            number=self.take_number,
            on_accident=self.broken.set,
            made_before=made_before,
        )

    # --- calls

    async def subscribe(
        self,
        request: GenerationRequest,
        *,
        wire: str,
        again: bool = False,
        name: str = "",
        body: bytes = b"",
    ) -> "CallSubscription":
        """Begins the call of this request, or finds the call that it repeats. `again` is set if the
        client says that it repeats a request. `name` is a name that the client gives to all tries
        of one request. `body` is the body of the HTTP request. Raises `RequestRejected`."""
        digests = await off_loop(lambda: self.lookup.digests(request.messages), size=len(body))
        if self._closed:
            raise RequestRejected(
                409, "this attempt is over; a newer one goes on", code="attempt_over"
            )
        self.check_not_completed()
        unsupported.check_supported(request, self.session.speaker.renderer)
        conversation = digests[-1] if digests else digest.START
        sampling = _sampling(self.session.context.spec.sampling, request)
        tools = self._schemas.of(request.tools)
        key = digest.key_of(request, conversation, sampling, tools=tools.canonical)
        call = self._calls.repeated(key, name=name, again=again)
        if call is None:
            call_id, live = self._call_id(key, again=again), LiveAnswer()
            call = self._begin(PendingCall(request, wire, digests, sampling, tools, call_id, live))
        if name:
            self._calls.name(call, name)
        return CallSubscription(call, self, wire=wire, body=body)

    def _begin(self, pending: PendingCall) -> SampledCall:
        live = pending.live
        job = asyncio.create_task(self._answer(pending), name=f"call of {self.name}")
        job.add_done_callback(lambda _: live.forget())
        return self._calls.add(SampledCall(pending.id.key, job, id=pending.id, live=live))

    def _call_id(self, key: bytes, *, again: bool) -> CallId:
        calls = self._calls.count(key)
        if key in self._continued:
            self._received_before.clear()
        received = self._received_before.get(key, 0)
        # A client that repeats its last request has not received the answer.
        first = max(0, received - (again and not calls))
        return CallId(key, calls + first)

    async def _answer(self, pending: PendingCall) -> Answer:
        """Returns the recorded answer, or samples one."""
        request, calls = pending.request, self.session.history.calls
        called = calls.get(pending.id)
        if called is not None:
            for path in called.choices:
                self._keep(path)
        else:
            called = await self._sample_or_fail(pending)
        return build_answer(self.session, called, request, bare=bool(prompts_of(request)))

    async def _sample_or_fail(self, pending: PendingCall) -> Called:
        """Samples the answer. An error that ends the attempt is noted before it is raised."""
        try:
            return await self._sample(pending)
        except Truncated as limit:
            self.limit = self.limit or limit
            raise
        except RequestRejected:
            raise
        except Exception as error:
            rejection = unsupported.rejection_of(error, pending.request, pending.wire)
            if rejection is not None:
                raise rejection from error
            if is_accident(error):
                self.session.state.fail(error)
                self.broken.set()
            raise

    # --- rejections

    def check_not_completed(self) -> None:
        """Raises `RequestRejected` if the agent has said that it is done."""
        if self.completed.is_set():
            message = "the agent said that it is done (POST /complete): nothing more is sampled"
            raise RequestRejected(409, message, code="attempt_over")

    async def record_rejection(self, rejection: RequestRejected, *, wire: str, body: bytes) -> None:
        """Makes a rejection durable before it is sent. Rejections that follow from the end of the
        attempt, or from a limit that the policy met, are not recorded."""
        broken = self.session.state.broken
        is_over = self._closed or self.completed.is_set() or self.limit is not None
        if is_over or rejection.code in _NOT_RECORDED:
            return
        if isinstance(broken, RunStopped | None):
            await self.rejected_calls.add(rejection, wire=wire, body=body)

    # --- sampling

    async def _sample(self, pending: PendingCall) -> Called:
        session, request = self.session, pending.request
        session.state.check_usable()
        speaker = session.speaker.at_sampling(pending.sampling)
        drafted = self._drafted.pop(pending.id, None)
        number = self.take_number() if drafted is None else drafted.number
        await session.keep_episodes()
        await self._schemas.store(pending.tools, request.tools)
        position, turns = None, await self._raw_turns(pending, number)
        if not turns:
            position, turns = await self._turns(pending, number, speaker)
        created = int(time.time()) if drafted is None else drafted.created
        opening = pending.opening(turns, trajectory=self.name, created=created)
        steps = await self._steps(pending, turns, speaker, opening)
        called = pending.record(steps, opening)
        await session.log.append(
            *(generate_step.without_drafted(session, step) for step in steps),
            called,
            *self.received.take_records(),
        )
        for step in steps:
            self._keep(step.path)
            self._images.add(step)
        if position is None:
            self._raw_prompts.add(called)
        else:
            self._tree.add(called, steps, position, tools=request.tools)
        return called

    async def _steps(
        self,
        pending: PendingCall,
        turns: Sequence[GenerateStep],
        speaker: Speaker,
        opening: Opening,
    ) -> list[Generated]:
        """Samples one generation for each turn. Publishes the parts of the generations as they
        become durable."""
        session = self.session
        is_streamed = pending.request.stream and self.pace.tokens
        pace = self.pace if is_streamed else Pace(session.context.partial_tokens)
        audiences: Sequence[DraftListener | None] = [None] * len(turns)
        if pace.tokens:
            audiences = pending.live.audiences(
                turns, speaker, opening=opening, pace=pace, call=pending.id
            )
        completions = await gather_or_cancel(
            [
                generate_step.sample(session, speaker, turn, audience=audience)
                for turn, audience in zip(turns, audiences, strict=True)
            ]
        )
        return [
            await generate_step.build_step(session, speaker, turn, completion)
            for turn, completion in zip(turns, completions, strict=True)
        ]

    def position(self, request: GenerationRequest) -> TreePosition:
        """Returns the position that a request would get, without recording anything."""
        digests = self.lookup.digests(request.messages)
        return self._tree.position(
            self._conversation(request, digests, self._schemas.of(request.tools))
        )

    def _conversation(
        self, request: GenerationRequest, digests: list[bytes], tools: ToolSet
    ) -> Conversation:
        equal = self._schemas.equal(tools)
        return Conversation(request.messages, digests, request.tools, equal)

    @cached_property
    def _raw_prompts(self) -> RawPrompts:
        return RawPrompts(self.session.history)

    async def _raw_turns(self, pending: PendingCall, number: int) -> list[GenerateStep]:
        """Returns one turn for each choice of each raw prompt. A conversation has none."""
        renderer = self.session.speaker.renderer
        prompts = [
            await self._raw_prompts.prepare(raw, renderer=renderer, sampling=pending.sampling)
            for raw in prompts_of(pending.request)
        ]
        choices = enumerate(raw for raw in prompts for _ in range(pending.request.n))
        return [
            pending.turn(
                self.session,
                f"{number}.{choice}.0",
                prompt=raw.prompt,
                ids=raw.ids,
                messages=raw.added,
                added=raw.added,
                bare=True,
            )
            for choice, raw in choices
        ]

    async def _turns(
        self, pending: PendingCall, number: int, speaker: Speaker
    ) -> tuple[TreePosition, list[GenerateStep]]:
        """Returns one turn for each choice, and their position. This is the request's usual
        position, unless a durable draft began at another position."""
        request = pending.request
        paths = [f"{number}.{choice}.0" for choice in range(request.n)]
        durable = self.session.history.drafts
        drafts = [durable[path] for path in paths if path in durable]
        first: tuple[TreePosition, list[GenerateStep]] | None = None
        conversation = self._conversation(request, pending.digests, pending.tools)
        edit = self.session.history.edits.get(pending.seed_from)
        for position in self._tree.positions(conversation):
            if edit is not None:
                edit.apply(position.messages)
            turns = await self._turns_at(position, pending, paths, speaker)
            if all(draft.fingerprint == turns[0].prompt.fingerprint for draft in drafts):
                return position, turns
            first = first or (position, turns)
        assert first is not None, "there is a position for every call"
        return first

    async def _turns_at(
        self, position: TreePosition, pending: PendingCall, paths: Sequence[str], speaker: Speaker
    ) -> list[GenerateStep]:
        """Returns one turn for each path, all with the same prompt."""
        stream, messages = position.stream, position.messages
        prompt = await stream.prepare(
            messages, pending.request.tools, renderer=speaker.renderer, sampling=pending.sampling
        )
        added = self._images.references(prompt.added)
        # Choices are recorded together, because the later ones refer to images that the first one
        # adds.
        others = tuple(
            f"{ADDED}{paths[0]}:{at}" if not isinstance(item, str) and item.images else item
            for at, item in enumerate(added if len(paths) > 1 else ())
        )
        ids = stream.prompt_ids(prompt)
        return [
            pending.turn(
                self.session,
                path,
                prompt=prompt,
                ids=ids,
                messages=messages,
                added=added if path == paths[0] else others,
            )
            for path in paths
        ]

    def go_on(self) -> None:
        """Continues with the agent of the last attempt, which is alive and will not repeat answered
        calls."""
        history = self.session.history
        self.session.log.continue_attempt()
        self.tools.go_on()
        self._received_before = received_counts(history)
        self._continued = continued_keys(history)
        for path in steps_of_last_attempt(history):
            self._keep(path)

    def _keep(self, path: str) -> None:
        """Adds a reply and its sources to this attempt. The sources were not requested again, but
        without them the reply would lose its beginning."""
        paths = [path]
        while paths:
            path = paths.pop()
            if path in self._kept_paths:
                continue
            self._kept_paths.add(path)
            self.session.log.keep(path)
            step = self.session.history.steps.get(path)
            paths += step.sources if isinstance(step, Generated) else ()

    # --- signs of life

    def touch(self) -> None:
        """Notes that the agent is alive."""
        self.last_seen = self.session.clock.elapsed()

    @property
    def has_calls(self) -> bool:
        """Returns whether the agent ever made a call, in this attempt or an earlier one."""
        return any(self._calls) or bool(self.session.history.calls_ever)

    @property
    def is_idle(self) -> bool:
        """Returns whether no connection waits for an answer."""
        return not self.tools.is_busy and not self._calls.is_waited_for

    def is_silent(self, seconds: float) -> bool:
        """Returns whether no connection waits for an answer, and the last request is more than
        `seconds` ago."""
        return self.is_idle and self.session.clock.elapsed() - self.last_seen > seconds

    async def let_finish(
        self, *, only_undelivered: bool = False, seconds: float | None = None
    ) -> None:
        """Waits until answers that are being sampled are durable, so that the next attempt gets
        them at once. Call it when the agent is gone. The time is limited by `seconds` and by the
        policy's own deadlines. With `only_undelivered`, calls that a connection still waits for are
        cancelled."""
        self._closed = True
        for call in self._calls if only_undelivered else ():
            if call.subscribers:
                call.job.cancel()
        running = [call.job for call in self._calls if not call.job.done()]
        if running:
            await asyncio.wait(running, timeout=seconds)
        crashpoint.reach("gateway.finished")

    async def aclose(self) -> None:
        """Ends the attempt. Cancels its calls and samples nothing more."""
        self._closed = True
        await self._calls.cancel()
        await self.received.aclose()
        await self.tools.aclose()


class CallSubscription(Subscription[SampledCall]):
    """One connection that waits for the answer of a call."""

    def __init__(self, call: SampledCall, trajectory: AgentTrajectory, *, wire: str, body: bytes):
        """`body` is the body of the connection's request."""
        super().__init__(call)
        self._trajectory = trajectory
        self._wire, self._body = wire, body
        self._received = 0

    async def answer(self) -> Answer:
        """Returns the answer. Raises `RequestRejected` for every error except a cancellation of the
        caller, which is raised as it is. If `record_rejection` has to record the rejection, this
        happens first."""
        trajectory = self._trajectory
        try:
            answer: Answer = await self.result()
            await trajectory.rejected_calls.resolve(answer, body=self._body)
        except Exception as error:
            rejection = as_rejection(error, trajectory.name)
            await trajectory.record_rejection(rejection, wire=self._wire, body=self._body)
            raise rejection from (None if rejection is error else error)
        return answer

    @property
    def is_ready(self) -> bool:
        return self.call.job.done()

    @property
    def opening(self) -> Opening | None:
        """Returns the opening of an answer that is streamed while it is sampled, or None if there
        is none."""
        return self.call.live.opening

    async def next_deltas(self, seconds: float) -> Sequence[AnswerDelta]:
        """Returns the durable deltas since the last call. Returns an empty sequence if there are no
        new deltas within `seconds`, or if the answer is complete."""
        live, job = self.call.live, self.call.job
        if not self.is_ready and not live.since(self._received):
            events: set[asyncio.Future[Any]] = {job, live.more}
            await asyncio.wait(events, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        deltas = () if self.is_ready else live.since(self._received)
        self._received += len(deltas)
        return deltas

    def leave(self, *, delivered: bool | None) -> None:
        super().leave(delivered=delivered)
        self._trajectory.touch()

    def mark_delivered(self) -> None:
        self.call.delivered = True
        self._trajectory.received.add(self.call.id)


def _sampling(run: Sampling, request: GenerationRequest) -> Sampling:
    options = {
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "stop": request.stop or None,
        "json": request.json or None,
        "reasoning_effort": request.reasoning_effort,
        "top_k": request.top_k,
        "tool_choice": request.tool_choice or None,
        "parallel_tool_calls": None if request.parallel_tool_calls else False,
        "thinking_token_budget": request.thinking_token_budget,
        "chat_template_kwargs": request.chat_template_kwargs,
        **structs.asdict(request.altering),
    }
    changes = {name: value for name, value in options.items() if value is not None}
    try:
        return msgspec.convert({**structs.asdict(run), **changes}, Sampling)
    except (msgspec.ValidationError, UsageError) as error:
        raise RequestRejected(400, str(error)) from error
