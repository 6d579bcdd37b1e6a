"""AgentTrajectory: one attempt of a black-box agent, whose calls are the steps.

A call that is recorded is answered from the record. Any other is sampled once, whoever waits for
it: the sampling belongs to the trajectory, not to the connection, so that a client which went away
and asks again is given the same answer. Durable first, told after (I1).
"""

import asyncio
import hashlib
import time
from array import array
from collections import defaultdict

import msgspec
from msgspec import Struct, structs

from holdfast.gateway import canonical
from holdfast.gateway.exchange import Answer, Ask, Choice, Refused
from holdfast.gateway.tree import Place, Tree
from holdfast.policy.policy import DEADLINE
from holdfast.records.errors import RunStopped, Truncated, UsageError
from holdfast.records.message import Message
from holdfast.records.sampling import Sampling
from holdfast.records.step import Called, Generated
from holdfast.records.tokens import count, unpack_ids, unpack_logprobs
from holdfast.rollout import generation
from holdfast.rollout.generation import Turn
from holdfast.rollout.prompt import Stream
from holdfast.rollout.session import Session, is_accident


class _Call(Struct):
    """One request of this attempt, and those that ask it again."""

    key: bytes
    occurrence: int
    job: "asyncio.Task[Answer]"
    listeners: int = 0
    delivered: bool = False
    """Whether somebody heard the whole answer."""


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
        self._tree = Tree(session.history, session.task)
        self._calls: defaultdict[bytes, list[_Call]] = defaultdict(list)
        self._named: dict[str, _Call] = {}
        # Calls at once are not recorded in the order of their numbers, and some of them never.
        taken = (int(path.partition(".")[0]) + 1 for path in session.history.steps)
        self._numbers = max(session.history.calls_ever, *taken, 0)
        self._visited: set[str] = set()
        self._closed = False
        self._tools: dict[bytes, bytes] = {}

    # --- what the wire asks

    async def hear(self, ask: Ask, *, wire: str, again: bool = False, name: str = "") -> "Hearing":
        """The call that `ask` is. `again`: the client says that it asks a second time; `name`: a
        name that it gives to all of its tries."""
        if self._closed:
            raise Refused(409, "this attempt is over; a newer one goes on", code="attempt_over")
        self.last_heard = self.session.clock.elapsed()
        messages = ask.messages
        digests = canonical.digests(messages)
        conversation = digests[-1] if digests else canonical.START
        sampling = _sampling(self.session.sampling, ask)
        key = canonical.key_of(ask, conversation, sampling)
        call = self._named.get(name) if name else None
        if call is not None and call.key != key:
            words = "this idempotency key was given to another request"
            raise Refused(400, words, code="idempotency_key_in_use")
        call = call or self._asked_before(key, again=again)
        if call is None:
            occurrence = len(self._calls[key])
            work = self._answer(ask, wire, digests, sampling, key, occurrence)
            call = _Call(key, occurrence, asyncio.create_task(work, name=f"call of {self.name}"))
            self._calls[key].append(call)
        if name:
            self._named[name] = call
        call.listeners += 1
        return Hearing(self, call)

    def _asked_before(self, key: bytes, *, again: bool) -> _Call | None:
        """A call that nobody listens to any more, and whose answer nobody heard, is asked again;
        others with the same words are others."""
        calls = self._calls[key]
        unheard = next((one for one in calls if not one.listeners and not one.delivered), None)
        return calls[-1] if unheard is None and again and calls else unheard

    async def _answer(
        self,
        ask: Ask,
        wire: str,
        digests: list[bytes],
        sampling: Sampling,
        key: bytes,
        occurrence: int,
    ) -> Answer:
        recorded = self.session.history.calls.get((key, occurrence))
        if recorded is not None:
            for path in recorded.choices:
                self._visit(path)
            return self._told(recorded, ask)
        try:
            called = await self._sample(ask, wire, digests, sampling, key, occurrence)
        except Truncated as limit:
            self.limit = self.limit or limit
            raise
        except Refused:
            raise
        except Exception as error:
            if is_accident(error):
                self.session.failed(error)
                self.broken.set()
            raise
        return self._told(called, ask)

    # --- sampling

    async def _sample(
        self,
        ask: Ask,
        wire: str,
        digests: list[bytes],
        sampling: Sampling,
        key: bytes,
        occurrence: int,
    ) -> Called:
        session = self.session
        session.check_usable()
        number, self._numbers = self._numbers, self._numbers + 1
        tools = await self._kept_tools(ask)
        place = self._tree.place(ask.messages, digests, tools=ask.tools, tools_digest=tools)
        turns = [
            self._turn(place, ask, sampling, f"{number}.{choice}.0", f"{key.hex()}.{occurrence}")
            for choice in range(ask.n)
        ]
        completions = await asyncio.gather(
            *(generation.sample(session, session.voice, turn) for turn in turns)
        )
        steps = [
            generation.generated(session, session.voice, turn, completion)
            for turn, completion in zip(turns, completions, strict=True)
        ]
        called = Called(
            path=steps[0].path,
            key=key,
            occurrence=occurrence,
            choices=tuple(step.path for step in steps),
            beginning=canonical.beginning(ask.messages, digests),
            conversation=digests[-1] if digests else canonical.START,
            tools=tools,
            wire=wire,
            answer=hashlib.sha256(f"{self.name}/{steps[0].path}".encode()).hexdigest()[:24],
            created=int(time.time()),
            model=ask.model,
        )
        await session.append(*(generation.without_drafted(session, one) for one in steps), called)
        for step in steps:
            self._visit(step.path)
        self._tree.add(called, steps, [(one.path, _advanced(place, one, ask)) for one in steps])
        return called

    async def _kept_tools(self, ask: Ask) -> bytes:
        """The digest of the tools' schemas; they are stored once, however many calls show them."""
        if not ask.tools:
            return b""
        body = msgspec.json.encode(ask.tools)
        if body not in self._tools:
            self._tools[body] = await self.session.blobs.put_blob(body)
        return self._tools[body]

    def _turn(self, place: Place, ask: Ask, sampling: Sampling, path: str, seed_from: str) -> Turn:
        renderer = self.session.voice.renderer
        prompt = place.stream.next_prompt(
            place.messages, ask.tools, renderer=renderer, sampling=sampling
        )
        if ask.prompt_ids is not None:
            prompt = structs.replace(prompt, delta=array("i", ask.prompt_ids))
        elif ask.text is not None:
            raise Refused(400, "a prompt has to be a list of token ids here", param="prompt")
        added = place.stream.added(place.messages, anew=bool(prompt.prefix_break))
        return Turn(
            path=path,
            prompt=prompt,
            ids=place.stream.ids[: prompt.keep] + prompt.delta,
            sampling=sampling,
            tools=ask.tools,
            messages=tuple(place.messages),
            added=tuple(added),
            seed_from=f"{seed_from}.{path.split('.')[1]}",
        )

    def _visit(self, path: str) -> None:
        """What a reply goes on from is part of this attempt as well, though nobody asked for it
        again: without it, the reply would have lost its beginning."""
        while path and path not in self._visited:
            self._visited.add(path)
            self.session.visit(path)
            step = self.session.history.steps.get(path)
            path = step.base if isinstance(step, Generated) else ""

    # --- telling

    def _told(self, called: Called, ask: Ask) -> Answer:
        history = self.session.history
        steps = [history.steps[path] for path in called.choices]
        said = [step for step in steps if isinstance(step, Generated)]
        assert len(said) == len(steps), "a call is answered by generations"
        return Answer(
            id=called.answer,
            created=called.created,
            model=called.model,
            choices=tuple(self._choice(step, ask) for step in said),
            prompt_tokens=said[0].keep + count(said[0].delta),
            completion_tokens=sum(count(step.ids) for step in said),
            cached_tokens=said[0].keep,
        )

    def _choice(self, step: Generated, ask: Ask) -> Choice:
        reason = "length" if step.finish_reason == DEADLINE else step.finish_reason
        if step.message.tool_calls and reason == "stop":
            reason = "tool_calls"
        choice = Choice(step.message, reason)
        if not ask.logprobs:
            return choice
        decode = self.session.voice.renderer.decode
        ids = unpack_ids(step.ids)
        return structs.replace(
            choice,
            tokens=tuple(decode([token]) for token in ids),
            logprobs=tuple(unpack_logprobs(step.logprobs).tolist()),
        )

    def heard(self) -> None:
        """The agent gave a sign of life."""
        self.last_heard = self.session.clock.elapsed()

    def is_silent(self, seconds: float) -> bool:
        """Whether nobody waits for an answer, and nobody asked for so long."""
        if any(call.listeners for calls in self._calls.values() for call in calls):
            return False
        return self.session.clock.elapsed() - self.last_heard > seconds

    async def aclose(self) -> None:
        """The attempt is over: nothing more is sampled for it."""
        self._closed = True
        jobs = [call.job for calls in self._calls.values() for call in calls]
        for job in jobs:
            job.cancel()
        if jobs:
            await asyncio.wait(jobs)
        for job in jobs:
            _ = job.cancelled() or job.exception()


class Hearing:
    """One connection that waits for an answer."""

    def __init__(self, trajectory: AgentTrajectory, call: _Call):
        self._trajectory = trajectory
        self._call = call

    async def answer(self) -> Answer:
        """Cancelling it ends the waiting, not the sampling."""
        try:
            return await asyncio.shield(self._call.job)
        except RunStopped as stopped:
            raise Refused(503, str(stopped), code="stopping") from stopped

    @property
    def is_ready(self) -> bool:
        return self._call.job.done()

    async def wait(self, seconds: float) -> bool:
        """Whether the answer is there, after at most so many seconds."""
        await asyncio.wait({self._call.job}, timeout=seconds)
        return self.is_ready

    def leave(self, *, delivered: bool) -> None:
        self._call.listeners -= 1
        self._call.delivered = self._call.delivered or delivered
        self._trajectory.last_heard = self._trajectory.session.clock.elapsed()


def _sampling(run: Sampling, ask: Ask) -> Sampling:
    given = {
        "max_tokens": ask.max_tokens,
        "temperature": ask.temperature,
        "top_p": ask.top_p,
        "stop": ask.stop or None,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    try:
        return msgspec.convert({**structs.asdict(run), **changes}, Sampling)
    except (msgspec.ValidationError, UsageError) as error:
        raise Refused(400, str(error)) from error


def _advanced(place: Place, step: Generated, ask: Ask) -> Stream:
    stream = place.stream.copy()
    messages: list[Message] = place.messages
    stream.advance(step, messages, ask.tools)
    return stream
