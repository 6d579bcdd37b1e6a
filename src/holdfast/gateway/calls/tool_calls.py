"""The tools that an agent calls through the gateway. Each call is a durable step.

The intent is recorded first and the result afterwards, as with any tool (see `rollout.tool_step`).
A recorded call is answered from the record, without running the tool. An interrupted call is
resolved by its contract.

Parts of an agent call tools side by side. So timing must not decide which recorded call a new call
repeats. Only the content decides: the tool, its canonical arguments, the id if the agent gave one,
and how many equal calls came before. A step's path only says where it is rendered: after everything
that was recorded when it began. Each step has a scope of its own, so that a fork at the step
removes no other steps.
"""

import asyncio
import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Sequence

from holdfast.gateway.calls import digest
from holdfast.gateway.calls.call import AgentCall, CallTable, Subscription
from holdfast.gateway.protocol.messages import RequestRejected, shorten
from holdfast.records.encoding.redaction import redact
from holdfast.records.errors import HoldfastError, RunStopped, ToolSaysNo
from holdfast.records.message import FunctionCall, ToolCall
from holdfast.records.step import ToolIntent, ToolResult, path_order
from holdfast.rollout.replay.session import Session, is_accident
from holdfast.rollout.tool_step import run_calls
from holdfast.rollout.tools.tool import Tool

LAST_SECONDS = 10.0
"""Seconds for calls that still run when their agent is gone. A result that comes within this time
is recorded, and replayed to the next attempt."""
MAX_ID_CHARS = 256
_ARGUMENT = re.compile(
    r"at `\$\.([A-Za-z0-9_]+)|(?:field|argument|property) [`']([A-Za-z0-9_]+)[`']"
)


class _ToolRun(AgentCall[ToolResult], kw_only=True, eq=False):
    replayed: bool


class AgentTools:
    """The tool calls of one attempt. `number` returns the next number of a step. `on_accident` is
    called when the attempt cannot continue."""

    def __init__(
        self,
        session: Session,
        tools: Sequence[Tool] = (),
        *,
        number: Callable[[], int],
        on_accident: Callable[[], None],
        made_before: frozenset[str] = frozenset(),
    ):
        """`made_before` has the steps that were recorded before the state from which the agent
        continues. The agent will not make these calls again, so a call without an id never repeats
        one of them."""
        self.tools = {tool.name: tool for tool in tools}
        self._session = session
        self._number = number
        self._on_accident = on_accident
        self._recorded: defaultdict[bytes, list[str]] = defaultdict(list)
        self._made: dict[bytes, int] = {}
        self._calls: CallTable[_ToolRun] = CallTable()
        self._closed = False
        if tools:
            self._read(made_before)

    def _read(self, made_before: frozenset[str]) -> None:
        steps = self._session.history.steps
        for path in sorted(steps, key=path_order):
            step = steps[path]
            if isinstance(step, ToolIntent):
                key = key_of(step.name, step.arguments, step.call_id)
                self._recorded[key].append(path)
                if path in made_before:
                    self._made[key] = len(self._recorded[key])

    def go_on(self) -> None:
        """Continues with an agent that outlived its gateway. All recorded calls are this agent's
        own. The agent repeats any call that never ended, because it lost its connection."""
        results = self._session.history.results
        for key, paths in self._recorded.items():
            # Among equal calls, an unfinished one comes last, because it may have begun first.
            paths.sort(key=lambda path: path not in results)
            self._made[key] = sum(path in results for path in paths)

    @property
    def schemas(self) -> list[dict[str, object]]:
        return [tool.schema for tool in self.tools.values()]

    @property
    def is_busy(self) -> bool:
        return self._calls.is_waited_for

    def subscribe(self, name: str, arguments: str, *, call_id: str = "") -> "ToolSubscription":
        """Begins the call, or finds the call that it repeats. Calls with the same `call_id` are the
        same call, in all attempts. Raises `RequestRejected`."""
        if self._closed:
            raise RequestRejected(
                409, "this attempt is over; a newer one goes on", code="attempt_over"
            )
        call = self._check(name, arguments, call_id)
        key = key_of(call.name, call.arguments, call.id)
        running = self._calls.repeated(key, name=call_id) or self._begin(key, call)
        if call_id:
            self._calls.name(running, call_id)
        return ToolSubscription(running)

    def _check(self, name: str, arguments: str, call_id: str) -> ToolCall:
        if len(call_id) > MAX_ID_CHARS or not (call_id.isascii() and call_id.isprintable()):
            raise RequestRejected(
                400, f"an id has at most {MAX_ID_CHARS} characters, all of them ASCII"
            )
        tool = self.tools.get(name)
        if tool is None:
            known = ", ".join(self.tools) or "none"
            message = f"there is no tool {shorten(name, 100)!r}; there are: {known}"
            raise RequestRejected(404, message, code="unknown_tool")
        # Canonical, because a restarted agent may format the same arguments differently.
        canonical = digest.arguments_of(arguments)
        try:
            tool.bind(canonical)
        except ToolSaysNo as no:
            raise RequestRejected(
                400, str(no), param=argument_in(str(no)), code="invalid_arguments"
            ) from no
        return ToolCall(call_id, FunctionCall(name, canonical))

    def _begin(self, key: bytes, call: ToolCall) -> _ToolRun:
        # An id names the call. Without an id, earlier equal calls are other calls.
        made = 0 if call.id else self._made.get(key, 0)
        occurrence = made + self._calls.count(key)
        known = self._recorded[key]
        replayed = occurrence < len(known)
        path = known[occurrence] if replayed else f"{self._number()}.0.0"
        work = self._run(path, call)
        job = asyncio.create_task(work, name=f"tool {call.name} of {self._session.name}")
        replayed = replayed and path in self._session.history.results
        return self._calls.add(_ToolRun(key, job, replayed=replayed))

    async def _run(self, path: str, call: ToolCall) -> ToolResult:
        try:
            results, _ = await run_calls(self._session, [path], [call], list(self.tools.values()))
        except Exception as error:
            if is_accident(error):
                self._session.state.fail(error)
                self._on_accident()
            raise
        return results[0]

    async def aclose(self) -> None:
        """Ends the attempt. Running calls have a moment to end, and are then cancelled."""
        self._closed = True
        await self._calls.cancel(after=LAST_SECONDS)


class ToolSubscription(Subscription[_ToolRun]):
    """One connection that waits for the result of a tool."""

    async def result(self) -> ToolResult:
        try:
            result: ToolResult = await super().result()
        except RunStopped as stopped:
            raise RequestRejected(503, str(stopped), code="stopping") from stopped
        except HoldfastError as error:
            raise RequestRejected(503, redact(str(error)), code=str(error.cause)) from error
        return result


def key_of(name: str, arguments: str, call_id: str) -> bytes:
    """Returns the digest of everything that identifies a call."""
    parts = (name, digest.arguments_of(arguments), call_id)
    text = "\0".join(parts).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16).digest()


def argument_in(message: str) -> str | None:
    """Returns the argument that an error message names, or None."""
    match = _ARGUMENT.search(message)
    return None if match is None else match[1] or match[2]
