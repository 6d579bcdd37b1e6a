"""A hosted environment: one session of an environment's server.

- One thing at a time is done to the environment, each within its deadline.
- Each action is done once: asked again with the same index, it gives the same answer, also while
  it is still under way.
- What breaks the environment breaks the session: every later action gets the same error.
- The environment is closed exactly once, after whatever it was in.

It knows nothing of HTTP but the status of an answer.
"""

import asyncio
import hashlib
import inspect
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.environments.http.protocol import (
    BYTES,
    JSON,
    Began,
    Begin,
    EnvironmentAnswer,
    EnvironmentCall,
    Step,
    Trouble,
    Troubled,
    has_snapshots,
    seeing,
)
from holdfast.records.errors import EnvironmentBroken, ToolSaysNo, UsageError
from holdfast.records.failure import failure_of
from holdfast.rollout.episodes.environment import Environment, Observation, Recovery
from holdfast.rollout.threads.contain import as_exception, contained, end
from holdfast.rollout.threads.dedicated import OwnThread
from holdfast.rollout.tools.tool import KEY_PARAMETER, Tool, as_tool, result_text

CLOSE = "close"
_log = logging.getLogger("holdfast.environments")
_encode = msgspec.json.Encoder().encode


class HostedReply(Struct, frozen=True):
    """An answer, ready to be sent any number of times."""

    status: int
    body: bytes = b""
    kind: str = JSON
    retry_after: int | None = None


def trouble(status: int, kind: str, message: str, *, retry_after: int | None = None) -> HostedReply:
    return HostedReply(status, _encode(Troubled(Trouble(kind, message))), JSON, retry_after)


class NoBlobs:
    """The journal is on the other machine: what a served environment keeps, its snapshot holds."""

    async def put_blob(self, body: bytes) -> bytes:
        raise UsageError(_NO_BLOBS)

    async def get_blob(self, digest: bytes) -> bytes:
        raise UsageError(_NO_BLOBS)


_NO_BLOBS = (
    "an environment that is served over HTTP has no `blobs`: put all of its state into what "
    "`snapshot` returns, or declare recovery='replay'"
)


class Hosted:
    """Made in a running event loop. `begin` first, `leave` last."""

    def __init__(self, environment: Environment, *, name: str, max_state: int):
        """`max_state`: bytes that a snapshot may have."""
        if getattr(environment, "blobs", None) is not None:
            raise UsageError(
                f"{environment.name} is in use already: make a new instance for each session"
            )
        self.name = name
        self._max_state = max_state
        self._environment = environment
        environment.blobs = NoBlobs()
        self._tools: dict[str, Tool] = {one.name: one for one in map(as_tool, environment.tools)}
        self._thread = OwnThread(f"environment {environment.name}")
        self._loop = asyncio.get_running_loop()
        self._used = self._loop.time()
        self._done = 0
        """How many actions were taken on."""
        self._mark = b""
        """What the last of them was."""
        self._opening: asyncio.Task[HostedReply] | None = None
        self._job: asyncio.Task[HostedReply] | None = None
        """The last action."""
        self._looking: asyncio.Task[HostedReply] | None = None
        """The last snapshot."""
        self._work: asyncio.Task[object] | None = None
        """The last call into the environment, which may outlive its deadline."""
        self._in_thread = False
        self._broken: HostedReply | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._goodbye: asyncio.Future[HostedReply] = self._loop.create_future()

    # --- what its server asks

    @property
    def is_leaving(self) -> bool:
        return self._leaving is not None

    @property
    def is_busy(self) -> bool:
        return any(_is_running(one) for one in (self._opening, self._job, self._looking))

    @property
    def hangs(self) -> bool:
        """Whether it is in a call that cannot be stopped."""
        return self._in_thread and _is_running(self._work)

    def idle(self) -> float:
        """Seconds since anybody was interested in it."""
        return 0.0 if self.is_busy else self._loop.time() - self._used

    # --- what a client asks

    async def begin(self, asked: Begin) -> HostedReply:
        """Begins, or gives the answer of the beginning again."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._guarded(lambda: self._begin(asked)))
        return await self._answer_of(self._opening)

    async def step(self, asked: Step) -> HostedReply:
        return await self._act(asked.index, _encode(asked), lambda: self._step(asked))

    async def tool(self, asked: EnvironmentCall) -> HostedReply:
        return await self._act(asked.index, _encode(asked), lambda: self._tool(asked))

    async def snapshot(self) -> HostedReply:
        if not _is_running(self._looking):
            if (refused := self._refusal()) is not None:
                return refused
            self._looking = asyncio.create_task(self._guarded(self._snapshot))
        assert self._looking is not None
        return await self._answer_of(self._looking)

    def leave(self) -> "asyncio.Task[None]":
        """Begins to close it, if nobody has. The task ends when nothing of it is left."""
        if self._leaving is None:
            self._leaving = asyncio.create_task(self._leave())
        return self._leaving

    def abandon(self) -> "list[asyncio.Task[Any]]":
        """Waits for nothing any more: the server ends. What was cancelled."""
        tasks = (self._opening, self._job, self._looking, self._work, self._leaving)
        left = [task for task in tasks if task is not None and not task.done()]
        for task in left:
            task.cancel()
        return left

    async def goodbye(self) -> HostedReply:
        """Leaves, and says how closing went; not waiting for a call that cannot be stopped."""
        self.leave()
        if self.hangs:
            return HostedReply(202, b"{}")
        return await asyncio.shield(self._goodbye)

    # --- the rules

    async def _act(
        self, index: int, request: bytes, work: Callable[[], Awaitable[EnvironmentAnswer]]
    ) -> HostedReply:
        mark = hashlib.sha256(request).digest()
        if self._job is not None and index == self._done - 1 and mark == self._mark:
            return await self._answer_of(self._job)
        if index != self._done:
            return trouble(
                409,
                "WrongIndex",
                f"the next action of this session has index {self._done}, not {index}",
            )
        if (refused := self._refusal()) is not None:
            return refused
        self._done += 1
        self._mark = mark
        self._job = asyncio.create_task(self._guarded(lambda: _encoded(work())))
        return await self._answer_of(self._job)

    def _refusal(self) -> HostedReply | None:
        if self.is_busy:
            return trouble(409, "Busy", "the session has not answered the request before this one")
        return self._broken

    async def _answer_of(self, job: "asyncio.Task[HostedReply]") -> HostedReply:
        # Whoever asks may go away; what was begun goes on, and is there when they ask again.
        reply = await asyncio.shield(job)
        self._used = self._loop.time()
        return reply

    async def _guarded(self, work: Callable[[], Awaitable[HostedReply]]) -> HostedReply:
        try:
            return await work()
        except ToolSaysNo as no:
            return HostedReply(200, _encode(EnvironmentAnswer(refused=result_text(str(no)))))
        except Exception as error:
            self._broken = _broke(error)
            return self._broken
        finally:
            # Here, and not when the answer is sent: nobody may find it idle in between.
            self._used = self._loop.time()

    # --- the environment

    async def _begin(self, asked: Begin) -> HostedReply:
        environment = self._environment
        recovery = Recovery(environment.recovery)
        if asked.restore is not None:
            await self._never_no("restore", partial(environment.restore, asked.restore))
            return HostedReply(200, _encode(Began(self.name, recovery=recovery)))
        seen = await self._never_no("reset", partial(environment.reset, seed=asked.seed))
        return HostedReply(200, _encode(Began(self.name, seeing(seen), recovery)))

    async def _step(self, asked: Step) -> EnvironmentAnswer:
        seen = await self._call("step", partial(self._environment.step, asked.action))
        return EnvironmentAnswer(observation=seeing(seen))

    async def _tool(self, asked: EnvironmentCall) -> EnvironmentAnswer:
        tool = self._tools.get(asked.name)
        if tool is None:
            names = ", ".join(sorted(self._tools)) or "none"
            raise ToolSaysNo(f"there is no tool {asked.name!r}; the tools are: {names}")
        arguments = tool.bind(bytes(asked.arguments).decode())
        if tool.wants_key:
            arguments[KEY_PARAMETER] = asked.key
        work: Callable[[], object] = partial(tool.function, **arguments)
        if tool.isolated:
            work = partial(tool.invoke, arguments)
        found = await self._call(f"tool {tool.name}", work, tool.timeout)
        if isinstance(found, Observation):
            return EnvironmentAnswer(observation=seeing(found))
        # Whole: how much of it the model is shown is the client's matter.
        return EnvironmentAnswer(content=result_text(found))

    async def _snapshot(self) -> HostedReply:
        environment = self._environment
        if not has_snapshots(environment):
            return trouble(501, "NoSnapshots", f"{environment.name} has no snapshots")
        state = await self._never_no("snapshot", environment.snapshot)
        if not isinstance(state, bytes):
            raise TypeError(f"snapshot returned {type(state).__name__}, not bytes")
        if len(state) > self._max_state:
            # Now, and not when it is needed.
            raise ValueError(
                f"a snapshot of {len(state):,} bytes could not be restored; the server takes back "
                f"{self._max_state:,} (half of its max_body)"
            )
        return HostedReply(200, state, BYTES)

    async def _never_no(self, what: str, method: Callable[[], object]) -> Any:
        try:
            return await self._call(what, method)
        except ToolSaysNo as no:
            raise EnvironmentBroken(f"{what} said no: {no}") from no

    async def _call(self, what: str, method: Callable[[], object], limit: float = 0.0) -> Any:
        """What `method` returns, if it does so within its deadline."""
        if self.is_leaving and what != CLOSE:
            raise EnvironmentBroken(f"the session was closed before {what}")
        limit = limit or self._environment.timeout
        work = self._work = asyncio.create_task(self._run(method))
        # Looked at, now or later: what ends after its deadline has nobody else.
        work.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait({work}, timeout=limit)
        if not work.done():
            if not self._in_thread:
                work.cancel()
            raise EnvironmentBroken(f"{what} was not done within {limit:g} s")
        if work.cancelled():
            raise EnvironmentBroken(f"the session was closed during {what}")
        return work.result()

    async def _run(self, method: Callable[[], object]) -> object:
        is_async = inspect.iscoroutinefunction(method)
        if is_async:
            found = method()
        else:
            self._in_thread = True
            try:
                found = await self._thread.run(method)
            finally:
                self._in_thread = False
        return await contained(found) if isinstance(found, Awaitable) else found

    async def _leave(self) -> None:
        await self._end_work()
        goodbye = await self._guarded(self._close)
        self._goodbye.set_result(goodbye)
        # A close that hangs still holds its thread.
        await self._end_work()
        self._thread.stop()

    async def _end_work(self) -> None:
        """Stops the call that the environment is in, or waits for one that cannot be stopped."""
        if (work := self._work) is None or work.done():
            return
        if self._in_thread:
            await asyncio.wait({work})
        else:
            await end(work)

    async def _close(self) -> HostedReply:
        await self._never_no(CLOSE, self._environment.close)
        return HostedReply(200, b"{}")


async def _encoded(answer: Awaitable[EnvironmentAnswer]) -> HostedReply:
    return HostedReply(200, _encode(await answer))


def _is_running(task: "asyncio.Task[Any] | None") -> bool:
    return task is not None and not task.done()


def _broke(error: Exception) -> HostedReply:
    """What the client is told; the rest is for whoever runs the server."""
    failure = failure_of(as_exception(error))
    _log.warning("%s", failure.traceback.rstrip())
    return trouble(500, failure.type, failure.message)
