"""One session of an environment server: one environment and the actions of one client.

- The environment runs one call at a time, and each call has a deadline.
- Each action runs once. A repeated request with the same index gets the same reply, even while the
  action still runs.
- An error breaks the session: every later action gets the same error.
- The environment is closed exactly once, after the running call has ended.

A session knows nothing of HTTP except the status of a reply.
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
    ActionReply,
    BeginReply,
    BeginRequest,
    ErrorBody,
    ErrorReply,
    StepRequest,
    ToolRequest,
    as_body,
    has_snapshots,
)
from holdfast.records.errors import EnvironmentBroken, ToolSaysNo, UsageError
from holdfast.records.failure import as_exception, failure_of
from holdfast.rollout.episodes.environment import Environment, Observation, Recovery
from holdfast.rollout.threads.contain import contain, end_task
from holdfast.rollout.threads.dedicated import OwnThread
from holdfast.rollout.tools.tool import KEY_PARAMETER, Tool, as_tool, result_text

CLOSE = "close"
_log = logging.getLogger("holdfast.environments")
_encode = msgspec.json.Encoder().encode


class HostedReply(Struct, frozen=True):
    """A response, which can be sent again if the client repeats its request."""

    status: int
    body: bytes = b""
    content_type: str = JSON
    retry_after: int | None = None


def error_reply(
    status: int, kind: str, message: str, *, retry_after: int | None = None
) -> HostedReply:
    return HostedReply(status, _encode(ErrorReply(ErrorBody(kind, message))), JSON, retry_after)


class NoBlobs:
    """A blob store that raises an error at every call, because a served environment cannot reach
    the journal."""

    async def put_blob(self, body: bytes) -> bytes:
        raise UsageError(_NO_BLOBS)

    async def get_blob(self, digest: bytes) -> bytes:
        raise UsageError(_NO_BLOBS)


_NO_BLOBS = (
    "an environment that is served over HTTP has no `blobs`: put all of its state into what "
    "`snapshot` returns, or declare recovery='replay'"
)


class HostedSession:
    """One session. Create it in a running event loop, call `begin` first and `close` last."""

    def __init__(self, environment: Environment, *, name: str, max_state: int):
        """`max_state` is the largest size of a snapshot, in bytes."""
        if getattr(environment, "blobs", None) is not None:
            raise UsageError(
                f"{environment.name} is in use already: make a new instance for each session"
            )
        self.name = name
        self._max_state = max_state
        self._environment = environment
        environment.blobs = NoBlobs()
        self._tools: dict[str, Tool] = {tool.name: tool for tool in map(as_tool, environment.tools)}
        self._thread = OwnThread(f"environment {environment.name}")
        self._loop = asyncio.get_running_loop()
        self._last_used = self._loop.time()
        self._action_count = 0
        self._last_digest = b""
        """The digest of the last action's request."""
        self._tasks: dict[str, asyncio.Task[HostedReply]] = {}
        """The last task of each kind: begin, action, snapshot."""
        self._call: asyncio.Task[object] | None = None
        """The last call of the environment, which may run past its deadline."""
        self._is_in_thread = False
        self._error: HostedReply | None = None
        self._close_task: asyncio.Task[None] | None = None
        self._close_reply: asyncio.Future[HostedReply] = self._loop.create_future()

    # --- for the server

    @property
    def is_closing(self) -> bool:
        return self._close_task is not None

    @property
    def is_busy(self) -> bool:
        return any(not task.done() for task in self._tasks.values())

    @property
    def hangs(self) -> bool:
        """Whether a call runs in the environment's thread and therefore cannot be stopped."""
        return self._is_in_thread and self._call is not None and not self._call.done()

    def idle_seconds(self) -> float:
        return 0.0 if self.is_busy else self._loop.time() - self._last_used

    def close(self) -> "asyncio.Task[None]":
        """Starts to close the session, unless that has begun already. The returned task ends when
        the environment is closed and no call runs in its thread."""
        if self._close_task is None:
            self._close_task = asyncio.create_task(self._close())
        return self._close_task

    def cancel(self) -> "list[asyncio.Task[Any]]":
        """Cancels and returns all running tasks. Called when the server stops."""
        tasks = (*self._tasks.values(), self._call, self._close_task)
        running = [task for task in tasks if task is not None and not task.done()]
        for task in running:
            task.cancel()
        return running

    # --- for the client

    async def begin(self, request: BeginRequest) -> HostedReply:
        """Begins the episode. If the episode has already begun, returns the same reply again."""
        if "begin" not in self._tasks:
            self._start("begin", lambda: self._begin(request))
        return await self._reply_of("begin")

    async def step(self, request: StepRequest) -> HostedReply:
        return await self._act(request.index, _encode(request), lambda: self._step(request))

    async def tool(self, request: ToolRequest) -> HostedReply:
        return await self._act(request.index, _encode(request), lambda: self._call_tool(request))

    async def snapshot(self) -> HostedReply:
        task = self._tasks.get("snapshot")
        if task is None or task.done():
            if (rejection := self._rejection()) is not None:
                return rejection
            self._start("snapshot", self._take_snapshot)
        return await self._reply_of("snapshot")

    async def end(self) -> HostedReply:
        """Closes the session and returns the reply. If a running call cannot be stopped, returns
        status 202 without waiting for the call."""
        self.close()
        if self.hangs:
            return HostedReply(202, b"{}")
        return await asyncio.shield(self._close_reply)

    # --- each action once

    async def _act(
        self, index: int, request: bytes, act: Callable[[], Awaitable[ActionReply]]
    ) -> HostedReply:
        digest = hashlib.sha256(request).digest()
        is_last = index == self._action_count - 1 and digest == self._last_digest
        if is_last:
            return await self._reply_of("action")
        if index != self._action_count:
            message = f"the next action of this session has index {self._action_count}, not {index}"
            return error_reply(409, "WrongIndex", message)
        if (rejection := self._rejection()) is not None:
            return rejection
        self._action_count += 1
        self._last_digest = digest
        self._start("action", lambda: _encoded(act()))
        return await self._reply_of("action")

    def _rejection(self) -> HostedReply | None:
        if self.is_busy:
            message = "the session has not answered the request before this one"
            return error_reply(409, "Busy", message)
        return self._error

    def _start(self, kind: str, work: Callable[[], Awaitable[HostedReply]]) -> None:
        self._tasks[kind] = asyncio.create_task(self._guard(work))

    async def _reply_of(self, kind: str) -> HostedReply:
        # The client may disconnect. The action continues, and the next request gets its reply.
        reply = await asyncio.shield(self._tasks[kind])
        self._last_used = self._loop.time()
        return reply

    async def _guard(self, work: Callable[[], Awaitable[HostedReply]]) -> HostedReply:
        """Runs the work and returns its reply. Converts every error to a reply."""
        try:
            return await work()
        except ToolSaysNo as no:
            return HostedReply(200, _encode(ActionReply(refused=result_text(str(no)))))
        except Exception as error:
            failure = failure_of(as_exception(error))
            # The traceback goes into the server's log, not to the client.
            _log.warning("%s", failure.traceback.rstrip())
            self._error = error_reply(500, failure.type, failure.message)
            return self._error
        finally:
            # Set before the reply is sent, so that the session never looks idle in between.
            self._last_used = self._loop.time()

    # --- the environment

    async def _begin(self, request: BeginRequest) -> HostedReply:
        environment, body = self._environment, None
        if request.restore is not None:
            await self._must("restore", partial(environment.restore, request.restore))
        else:
            seen = await self._must("reset", partial(environment.reset, seed=request.seed))
            body = as_body(seen)
        reply = BeginReply(self.name, body, Recovery(environment.recovery))
        return HostedReply(200, _encode(reply))

    async def _step(self, request: StepRequest) -> ActionReply:
        seen = await self._run("step", partial(self._environment.step, request.action))
        return ActionReply(observation=as_body(seen))

    async def _call_tool(self, request: ToolRequest) -> ActionReply:
        tool = self._tools.get(request.name)
        if tool is None:
            names = ", ".join(sorted(self._tools)) or "none"
            raise ToolSaysNo(f"there is no tool {request.name!r}; the tools are: {names}")
        arguments = tool.bind(bytes(request.arguments).decode())
        if tool.wants_key:
            arguments[KEY_PARAMETER] = request.key
        call: Callable[[], object] = partial(tool.function, **arguments)
        if tool.isolated:
            call = partial(tool.invoke, arguments)
        result = await self._run(f"tool {tool.name}", call, tool.timeout)
        if isinstance(result, Observation):
            return ActionReply(observation=as_body(result))
        # Sent whole, because the client decides how much the model sees.
        return ActionReply(content=result_text(result))

    async def _take_snapshot(self) -> HostedReply:
        environment = self._environment
        if not has_snapshots(environment):
            return error_reply(501, "NoSnapshots", f"{environment.name} has no snapshots")
        state = await self._must("snapshot", environment.snapshot)
        if not isinstance(state, bytes):
            raise TypeError(f"snapshot returned {type(state).__name__}, not bytes")
        if len(state) > self._max_state:
            # Raises now rather than at the restore.
            raise ValueError(
                f"a snapshot of {len(state):,} bytes could not be restored; the server takes back "
                f"{self._max_state:,} (half of its max_body)"
            )
        return HostedReply(200, state, BYTES)

    async def _must(self, what: str, method: Callable[[], object]) -> Any:
        """Calls a method as `_run` does, but converts `ToolSaysNo` to `EnvironmentBroken`."""
        try:
            return await self._run(what, method)
        except ToolSaysNo as no:
            raise EnvironmentBroken(f"{what} said no: {no}") from no

    async def _run(self, what: str, method: Callable[[], object], limit: float = 0.0) -> Any:
        """Calls `method` in the environment's thread, or on the loop if it is async, and returns
        its result. Raises `EnvironmentBroken` after `limit` seconds."""
        if self.is_closing and what != CLOSE:
            raise EnvironmentBroken(f"the session was closed before {what}")
        limit = limit or self._environment.timeout
        call = self._call = asyncio.create_task(self._in_thread_or_loop(method))
        # Retrieves the error of a call that ends after its deadline, so that asyncio does not log
        # it.
        call.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.wait({call}, timeout=limit)
        if not call.done():
            if not self._is_in_thread:
                call.cancel()
            raise EnvironmentBroken(f"{what} was not done within {limit:g} s")
        if call.cancelled():
            raise EnvironmentBroken(f"the session was closed during {what}")
        return call.result()

    async def _in_thread_or_loop(self, method: Callable[[], object]) -> object:
        is_async = inspect.iscoroutinefunction(method)
        if is_async:
            result = method()
        else:
            self._is_in_thread = True
            try:
                result = await self._thread.run(method)
            finally:
                self._is_in_thread = False
        return await contain(result) if isinstance(result, Awaitable) else result

    async def _close(self) -> None:
        await self._end_call()
        self._close_reply.set_result(await self._guard(self._close_environment))
        # If `close` hangs, it still uses the thread.
        await self._end_call()
        self._thread.stop()

    async def _end_call(self) -> None:
        """Ends the running call: cancels it, or waits for its end if it runs in a thread and cannot
        be stopped."""
        if (call := self._call) is None or call.done():
            return
        if self._is_in_thread:
            await asyncio.wait({call})
        else:
            await end_task(call)

    async def _close_environment(self) -> HostedReply:
        await self._must(CLOSE, self._environment.close)
        return HostedReply(200, b"{}")


async def _encoded(reply: Awaitable[ActionReply]) -> HostedReply:
    return HostedReply(200, _encode(await reply))
