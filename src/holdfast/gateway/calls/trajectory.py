"""AgentTrajectory: one attempt of a black-box agent, whose calls are the steps.

A call that is recorded is answered from the record. Any other is sampled once, whoever waits for
it: the sampling belongs to the trajectory, not to the connection, so that a client which went away
and asks again is given the same answer. Durable first, told after (I1).
"""

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import Coroutine, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from holdfast import crashpoint
from holdfast.gateway.calls import digest, unsupported
from holdfast.gateway.calls.answer import answer_of
from holdfast.gateway.calls.attempt_status import steps_of_last_attempt
from holdfast.gateway.calls.call import AgentCall, Hearing, PendingCall, Which
from holdfast.gateway.calls.digest_cache import Remembered
from holdfast.gateway.calls.earlier_responses import KnownPast
from holdfast.gateway.calls.prefix_tree import PrefixTree, TreePosition
from holdfast.gateway.calls.raw_prompts import BarePrompts, prompts_of
from holdfast.gateway.calls.rejections import Refusals
from holdfast.gateway.calls.stream import Live, Pace, begun_in
from holdfast.gateway.calls.tool_calls import AgentTools
from holdfast.gateway.calls.tool_schemas import ShownTools
from holdfast.gateway.protocol.messages import Answer, Ask, Opening, RequestRejected
from holdfast.records.errors import RunStopped, Truncated, UsageError
from holdfast.records.sampling import Sampling
from holdfast.records.step import Called, Generated
from holdfast.rollout.replay import generate_step
from holdfast.rollout.replay.generate_step import GenerateStep
from holdfast.rollout.replay.session import Session, is_accident
from holdfast.rollout.replay.speaker import Voice
from holdfast.rollout.tools.tool import Tool

T = TypeVar("T")


async def together(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """What they return, in order. The first failure, or a cancellation, ends all of them."""
    if len(work) == 1:
        return [await work[0]]
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


_NO_REFUSALS = ("attempt_over", "stopping")


class AgentTrajectory:
    """Bound to a key while its attempt lives."""

    def __init__(self, session: Session):
        self.name = session.name
        self.session = session
        self.limit: Truncated | None = None
        """The limit that the policy met, if it did."""
        self.broken = asyncio.Event()
        """Set when the attempt cannot go on: the agent has to be started again."""
        self.reward: float | None = None
        self.completed = asyncio.Event()
        self.last_heard = session.clock.elapsed()
        """When the agent last asked something, or was last told."""
        self._tree = PrefixTree(session.history, session.task)
        self._calls: defaultdict[bytes, list[AgentCall]] = defaultdict(list)
        self._named: dict[str, AgentCall] = {}
        # Calls at once are not recorded in the order of their numbers, and some of them never.
        known = (*session.history.steps, *session.history.drafts)
        taken = (int(path.partition(".")[0]) + 1 for path in known)
        self._next = itertools.count(max(session.history.calls_ever, *taken, 0)).__next__
        self._begun = begun_in(session.history)
        self.refusals = Refusals(session)
        self.pace = Pace()
        """In which streams are told."""
        self._visited: set[str] = set()
        self._closed = False
        recorded = (called.tools for called in session.history.calls.values())
        self._shown = ShownTools(session.blobs, recorded)
        self._has_past = bool(session.history.calls or session.history.drafts)
        self.remembered = Remembered()
        self.past = KnownPast(session, self.remembered)
        # No method of ours: two that hold each other outlive their end, with all that they hold.
        self.tools = AgentTools(session, number=self._next, on_accident=self.broken.set)
        """Those that the agent calls through the gateway; none, unless it is given some."""

    def offer(self, tools: Sequence[Tool], *, standing: frozenset[str] = frozenset()) -> None:
        """From now on, the agent can call `tools` (see `AgentTools`)."""
        self.tools = AgentTools(
            self.session,
            tools,
            number=self._next,
            on_accident=self.broken.set,
            standing=standing,
        )

    def take_number(self) -> int:
        """The next number of a step."""
        return self._next()

    # --- what the wire asks

    async def hear(
        self, ask: Ask, *, wire: str, again: bool = False, name: str = "", body: bytes = b""
    ) -> Hearing:
        """The call that `ask` is. `again`: the client says that it asks a second time; `name`: a
        name that it gives to all of its tries; `body`: what it was read from."""
        if self._closed:
            raise RequestRejected(
                409, "this attempt is over; a newer one goes on", code="attempt_over"
            )
        self.last_heard = self.session.clock.elapsed()
        unsupported.check_told(ask, self.session.voice.renderer)
        messages = ask.messages
        digests = self.remembered.digests(messages)
        conversation = digests[-1] if digests else digest.START
        sampling = _sampling(self.session.sampling, ask)
        shown = self._shown.of(ask.tools)
        key = digest.key_of(ask, conversation, sampling, tools=shown.said)
        call = self._named.get(name) if name else None
        if call is not None and call.which.key != key:
            words = "this idempotency key was given to another request"
            raise RequestRejected(400, words, code="idempotency_key_in_use")
        call = call or self._asked_before(key, again=again)
        if call is None:
            older = key
            if self._has_past and not (shown.in_order and isinstance(sampling.json, bool)):
                older = digest.older_key_of(ask, conversation, sampling)
            which, live = self._which(key, older), Live()
            asked = PendingCall(ask, wire, digests, sampling, shown, which, live)
            job = asyncio.create_task(self._answer(asked), name=f"call of {self.name}")
            job.add_done_callback(lambda _: live.forget())
            call = AgentCall(which, job, live)
            self._calls[key].append(call)
        if name:
            self._named[name] = call
        return Hearing(
            call,
            on_leave=self.heard,
            on_answer=partial(self.refusals.answered, body=body),
            on_refused=partial(self.refused, wire=wire, body=body),
        )

    def _which(self, key: bytes, older: bytes) -> Which:
        calls = self._calls[key]
        before = len(calls)
        if older != key:
            before = sum(one.which.older[0] == older for one in calls)
        return Which(key, len(calls), (older, before))

    def _asked_before(self, key: bytes, *, again: bool) -> AgentCall | None:
        """A call that nobody listens to any more, and whose answer nobody heard, is asked again;
        others with the same words are others."""
        calls = self._calls[key]
        unheard = next((one for one in calls if not one.listeners and not one.delivered), None)
        return calls[-1] if unheard is None and again and calls else unheard

    async def _answer(self, asked: PendingCall) -> Answer:
        ask, calls = asked.ask, self.session.history.calls
        recorded = calls.get(asked.which.name_in(calls))
        if recorded is not None:
            for path in recorded.choices:
                self._visit(path)
            return answer_of(self.session, recorded, ask, bare=bool(prompts_of(ask)))
        try:
            called = await self._sample(asked)
        except Truncated as limit:
            self.limit = self.limit or limit
            raise
        except RequestRejected:
            raise
        except Exception as error:
            if (refused := unsupported.refusal_of(error, ask, asked.wire)) is not None:
                raise refused from error
            if is_accident(error):
                self.session.failed(error)
                self.broken.set()
            raise
        return answer_of(self.session, called, ask, bare=bool(prompts_of(ask)))

    # --- what is not answered

    def check_not_completed(self) -> None:
        """Raises `RequestRejected` once the agent has said that it is done."""
        if self.completed.is_set():
            words = "the agent said that it is done (POST /complete): nothing more is sampled"
            raise RequestRejected(409, words, code="attempt_over")

    async def refused(self, refused: RequestRejected, *, wire: str, body: bytes) -> None:
        """A call is about to be refused. What the end of the attempt brings with it, or a limit
        that the policy met, is no refusal."""
        broken = self.session.broken
        is_over = self._closed or self.completed.is_set() or self.limit is not None
        if is_over or refused.code in _NO_REFUSALS or not isinstance(broken, RunStopped | None):
            return
        await self.refusals.add(refused, wire=wire, body=body)

    # --- sampling

    async def _sample(self, asked: PendingCall) -> Called:
        session = self.session
        session.check_usable()
        # With the gate before it, which is gone with the attempt.
        voice = session.voice.speaking(asked.sampling)
        begun = self._begun.pop(asked.which.name_in(self._begun), None)
        number = self.take_number() if begun is None else begun.number
        await session.keep_worlds()
        await self._shown.keep(asked.shown, asked.ask.tools)
        place, turns = None, await self._bare_turns(asked, number)
        if not turns:
            place, turns = await self._turns(asked, number, voice)
        created = int(time.time()) if begun is None else begun.created
        opening = asked.opening(turns, trajectory=self.name, created=created)
        steps = await self._steps(asked, turns, voice, opening)
        called = asked.called(steps, opening)
        await session.append(
            *(generate_step.without_drafted(session, one) for one in steps), called
        )
        for step in steps:
            self._visit(step.path)
        if place is None:
            self._bare_prompts.add(called)
        else:
            self._tree.add(called, steps, place, tools=asked.ask.tools)
        return called

    async def _steps(
        self, asked: PendingCall, turns: Sequence[GenerateStep], voice: Voice, opening: Opening
    ) -> list[Generated]:
        """What is sampled, one for each turn, told on the way to whoever listens."""
        session, which = self.session, asked.which
        is_told = asked.ask.stream and self.pace.tokens
        heard = asked.live.audiences(
            turns,
            voice,
            opening=opening,
            pace=self.pace if is_told else Pace(session.partial_tokens),
            call=which.key,
            occurrence=which.occurrence,
        )
        completions = await together(
            [
                generate_step.sample(session, voice, turn, audience=audience)
                for turn, audience in zip(turns, heard, strict=True)
            ]
        )
        return [
            await generate_step.generated(session, voice, turn, completion)
            for turn, completion in zip(turns, completions, strict=True)
        ]

    def place(self, ask: Ask) -> TreePosition:
        """Where a request would belong; nothing of it is kept."""
        equal = self._shown.equal(self._shown.of(ask.tools))
        digests = self.remembered.digests(ask.messages)
        return self._tree.place(ask.messages, digests, tools=ask.tools, equal=equal)

    @cached_property
    def _bare_prompts(self) -> BarePrompts:
        return BarePrompts(self.session.history)

    async def _bare_turns(self, asked: PendingCall, number: int) -> list[GenerateStep]:
        """One for each choice of each bare prompt; none where there is a conversation."""
        ask, sampling, renderer = asked.ask, asked.sampling, self.session.voice.renderer
        prompts = [
            await self._bare_prompts.ask(one, renderer=renderer, sampling=sampling)
            for one in prompts_of(ask)
        ]
        return [
            GenerateStep(
                path=f"{number}.{choice}.0",
                prompt=one.prompt,
                ids=one.ids,
                sampling=sampling,
                tools=(),
                messages=one.added,
                added=one.added,
                seed_from=f"{asked.seed_from}.{choice}",
                seed=asked.seed(self.session, str(choice)),
                bare=True,
            )
            for choice, one in enumerate(one for one in prompts for _ in range(ask.n))
        ]

    async def _turns(
        self, asked: PendingCall, number: int, voice: Voice
    ) -> tuple[TreePosition, list[GenerateStep]]:
        """One for each choice, and where they belong: to the first place that there is, unless a
        beginning is durable. Then it is where that began, whatever was recorded since."""
        ask, equal = asked.ask, self._shown.equal(asked.shown)
        paths = [f"{number}.{choice}.0" for choice in range(ask.n)]
        drafts = [one for one in map(self.session.history.drafts.get, paths) if one is not None]
        first: tuple[TreePosition, list[GenerateStep]] | None = None
        for place in self._tree.places(ask.messages, asked.digests, tools=ask.tools, equal=equal):
            turns = await _turns(asked, place, paths, voice, self.session)
            if all(one.fingerprint == turns[0].prompt.fingerprint for one in drafts):
                return place, turns
            first = first or (place, turns)
        assert first is not None, "there is a place for every call"
        return first

    def go_on(self) -> None:
        """The agent of the last attempt lives, and goes on with it: it will not ask again what it
        was told."""
        self.session.go_on()
        self.tools.go_on()
        for path in steps_of_last_attempt(self.session.history):
            self._visit(path)

    def _visit(self, path: str) -> None:
        """What a reply goes on from is part of this attempt as well, though nobody asked for it
        again: without it, the reply would have lost its beginning."""
        while path and path not in self._visited:
            self._visited.add(path)
            self.session.visit(path)
            step = self.session.history.steps.get(path)
            path = step.base if isinstance(step, Generated) else ""

    # --- signs of life

    def heard(self) -> None:
        """The agent gave a sign of life."""
        self.last_heard = self.session.clock.elapsed()

    @property
    def was_asked(self) -> bool:
        """Whether the agent ever asked for anything, in this attempt or before."""
        return bool(self._calls or self.session.history.calls_ever)

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for an answer."""
        return not self.tools.is_busy and not any(call.listeners for call in self._every_call)

    @property
    def _every_call(self) -> Iterator[AgentCall]:
        return (call for calls in self._calls.values() for call in calls)

    def is_silent(self, seconds: float) -> bool:
        """Whether nobody waits for an answer, and nobody asked for so long."""
        if not self.is_idle:
            return False
        return self.session.clock.elapsed() - self.last_heard > seconds

    async def let_finish(self, *, unheard: bool = False, seconds: float | None = None) -> None:
        """The agent is gone, and its attempt with it: what is being sampled becomes durable all the
        same, so that the next attempt is given it at once. How long that takes is bounded by the
        policy's own deadlines. `unheard`: only that for which nobody waits any more."""
        self._closed = True
        for call in self._every_call if unheard else ():
            if call.listeners:
                call.job.cancel()
        running = [call.job for call in self._every_call if not call.job.done()]
        if running:
            await asyncio.wait(running, timeout=seconds)
        crashpoint.reach("gateway.finished")

    async def aclose(self) -> None:
        """The attempt is over: nothing more is sampled for it."""
        self._closed = True
        jobs = [call.job for call in self._every_call]
        for job in jobs:
            job.cancel()
        if jobs:
            await asyncio.wait(jobs)
        for job in jobs:
            _ = job.cancelled() or job.exception()
        await self.tools.aclose()


async def _turns(
    asked: PendingCall, place: TreePosition, paths: Sequence[str], voice: Voice, session: Session
) -> list[GenerateStep]:
    """One for each path, all from the same prompt."""
    tools, sampling = asked.ask.tools, asked.sampling
    prompt = await place.stream.prepare(
        place.messages, tools, renderer=voice.renderer, sampling=sampling
    )
    added = place.stream.added(place.messages, anew=bool(prompt.prefix_break))
    ids = place.stream.prompt_ids(prompt)
    return [
        GenerateStep(
            path=path,
            prompt=prompt,
            ids=ids,
            sampling=sampling,
            tools=tools,
            messages=tuple(place.messages),
            added=tuple(added),
            seed_from=f"{asked.seed_from}.{path.split('.')[1]}",
            seed=asked.seed(session, path.split(".")[1]),
        )
        for path in paths
    ]


def _sampling(run: Sampling, ask: Ask) -> Sampling:
    given = {
        "max_tokens": ask.max_tokens,
        "temperature": ask.temperature,
        "top_p": ask.top_p,
        "stop": ask.stop or None,
        "json": ask.json or None,
        "reasoning_effort": ask.reasoning_effort,
        "top_k": ask.top_k,
        "tool_choice": ask.tool_choice or None,
        "parallel_tool_calls": None if ask.parallel_tool_calls else False,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    try:
        return msgspec.convert({**structs.asdict(run), **changes}, Sampling)
    except (msgspec.ValidationError, UsageError) as error:
        raise RequestRejected(400, str(error)) from error
