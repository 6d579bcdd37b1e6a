"""A stage for rollouts: a policy that answers from a script, and one trajectory to perform on."""

import asyncio
import inspect
from array import array
from collections.abc import Callable

from holdfast.clock import Clock, SystemClock
from holdfast.journal.sql.journal import Journal
from holdfast.journal.sqlite.journal import MemoryJournal
from holdfast.journal.types import Lease
from holdfast.policy.policy import Completion, Request
from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.records.encoding.tokens import pack_ids, pack_logprobs
from holdfast.records.group import GroupPolicy
from holdfast.records.history import History
from holdfast.records.message import FunctionCall, ToolCall, user
from holdfast.records.run import RunSpec
from holdfast.records.sampling import Sampling
from holdfast.records.step import VersionSpan
from holdfast.records.task import Task
from holdfast.rollout.context import Rollout
from holdfast.rollout.replay.run_context import OnDivergence, RunContext
from holdfast.rollout.replay.session import Session
from holdfast.rollout.replay.speaker import Speaker
from support.records import joined
from support.rollout.renderers import BeginsEmpty

DEFAULT_SAMPLING = Sampling()


class Oracle:
    """A policy in this process. `answer` gives the text for a request, or the error to raise."""

    model = "oracle"

    def __init__(self, answer: Callable[[Request], object] = lambda request: f"re {request.id}"):
        self.answer = answer
        self.requests: list[Request] = []
        self.seconds_down = 0.0

    async def check(self) -> None: ...

    async def ready(self) -> None: ...

    async def aclose(self) -> None: ...

    async def sample(self, request: Request) -> Completion:
        self.requests.append(request)
        result = self.answer(request)
        if inspect.isawaitable(result):
            result = await result
        if isinstance(result, BaseException):
            raise result
        return completion(str(result), request.sampling.max_tokens)

    @property
    def request_ids(self) -> list[str]:
        return [request.id for request in self.requests]


def completion(text: str, max_tokens: int = 1024) -> Completion:
    ids = [*text.encode(), ByteRenderer.END]
    reason = "stop" if len(ids) <= max_tokens else "length"
    ids = ids[:max_tokens]
    logprobs = pack_logprobs([-(index + 1) / 256 for index in range(len(ids))])
    spans = (VersionSpan("v1", 0, len(ids)),)
    return Completion(pack_ids(ids), logprobs, reason, spans, "oracle", 1, 0.0)


def text_of(prompt: "array[int]") -> str:
    return bytes(token for token in prompt if token < 256).decode()


class StopWhen(asyncio.Event):
    """Set as soon as `condition` says so."""

    def __init__(self, condition: Callable[[], bool]):
        super().__init__()
        self._condition = condition

    def is_set(self) -> bool:
        return self._condition()


class TrajectoryUnderTest:
    """One trajectory, performed as often as a test likes: each time as a resumed process would."""

    def __init__(
        self,
        oracle: Oracle | None = None,
        *,
        journal: Journal | None = None,
        task: Task | None = None,
        samples: int = 1,
        seed: int | None = 1,
        model: str = "oracle",
    ):
        self.oracle = oracle or Oracle()
        self.journal = journal or MemoryJournal()
        self.task = task or Task(id="t", messages=(user("do it"),))
        self.samples = samples
        self.seed = seed
        self.model = model
        self.leases: list[Lease] = []

    def spec(self, sampling: Sampling = DEFAULT_SAMPLING) -> RunSpec:
        return RunSpec(
            *("run", self.samples, self.model, sampling, self.seed, "solve", "", "bytes", "tasks"),
            group=GroupPolicy(refill=0),  # There is nobody here who would begin anew.
        )

    async def lease(self, sample: int = 0) -> Lease:
        if not self.leases:
            run = await self.journal.create_run(self.spec(), [self.task])
            (claim,) = await self.journal.claim(await joined(self.journal, run), groups=1)
            self.leases = claim.open
        return self.leases[sample]

    async def history(self, sample: int = 0) -> History:
        return History(await self.journal.history((await self.lease(sample)).id))

    async def session(
        self,
        *,
        on_divergence: OnDivergence = OnDivergence.FORK,
        stopping: Callable[[], bool] = lambda: False,
        sample: int = 0,
        sampling: Sampling | None = None,
        partial_tokens: int = 0,
        clock: Clock | None = None,
    ) -> Session:
        context = RunContext(
            spec=self.spec(sampling or DEFAULT_SAMPLING),
            journal=self.journal,
            speaker=Speaker(self.oracle, BeginsEmpty()),
            clock=clock or SystemClock(),
            worker="worker",
            on_divergence=on_divergence,
            stop=StopWhen(stopping),
            partial_tokens=partial_tokens,
        )
        history = await self.history(sample)
        return Session(context, await self.lease(sample), self.task, history)

    async def perform(self, rollout, **options) -> object:
        session = await self.session(**options)
        await session.log.begin_anew_if_needed()
        try:
            return await rollout(Rollout(session))
        finally:
            await session.episodes.close()


def call(name: str, arguments: str = "{}", *, call_id: str = "call_1") -> ToolCall:
    return ToolCall(call_id, FunctionCall(name, arguments))
