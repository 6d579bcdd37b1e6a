"""AgentTools: the tools that an agent calls through the gateway, each call a durable step.

Intent first, result after, as with any tool (see `rollout.calls`): a call that is recorded is
answered from the record and does nothing; one that was interrupted is resolved by its contract.

Which recorded call a new one is must not depend on timing, since parts of an agent call side by
side. So it goes by content: the tool, its arguments in their canonical form, the id that the agent
gave (if it did), and which of several such calls it is. A step's path only says where it is shown:
after what was recorded when it began. It lies in a scope of its own, so that a fork there takes
nothing else along.
"""

import asyncio
import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Sequence

from msgspec import Struct

from holdfast.gateway.calls import digest
from holdfast.gateway.protocol.messages import RequestRejected, shortened
from holdfast.records.errors import HoldfastError, RunStopped, ToolSaysNo
from holdfast.records.message import FunctionCall, ToolCall
from holdfast.records.redaction import redact
from holdfast.records.step import ToolIntent, ToolResult, path_order
from holdfast.rollout.replay.attempt_state import is_accident
from holdfast.rollout.replay.session import Session
from holdfast.rollout.tool_step import run_calls
from holdfast.rollout.tools.tool import Tool

LAST_SECONDS = 10.0
"""For how long calls that still run are waited for when their agent is gone: one that ends in time
is recorded, and its agent, started again, is told its result."""
LONGEST_ID = 256
_ARGUMENT = re.compile(
    r"at `\$\.([A-Za-z0-9_]+)|(?:field|argument|property) [`']([A-Za-z0-9_]+)[`']"
)


class _Use(Struct, eq=False):
    """One call of this attempt, and those that ask it again."""

    key: bytes
    job: "asyncio.Task[ToolResult]"
    replayed: bool
    listeners: int = 0
    delivered: bool = False


class AgentTools:
    """Those of one attempt. `number` gives the next number of a step; `on_accident` is called when
    the attempt cannot go on."""

    def __init__(
        self,
        session: Session,
        tools: Sequence[Tool] = (),
        *,
        number: Callable[[], int],
        on_accident: Callable[[], None],
        standing: frozenset[str] = frozenset(),
    ):
        """`standing`: steps that were made before the state which the agent goes on from. It will
        not make them again: a call without an id is another than all of these."""
        self.tools = {one.name: one for one in tools}
        self._session = session
        self._number = number
        self._on_accident = on_accident
        self._recorded: defaultdict[bytes, list[str]] = defaultdict(list)
        self._made: dict[bytes, int] = {}
        self._uses: defaultdict[bytes, list[_Use]] = defaultdict(list)
        self._named: dict[str, _Use] = {}
        self._closed = False
        if tools:
            self._read(standing)

    def _read(self, standing: frozenset[str]) -> None:
        steps = self._session.history.steps
        for path in sorted(steps, key=path_order):
            step = steps[path]
            if isinstance(step, ToolIntent):
                key = key_of(step.name, step.arguments, step.call_id)
                self._recorded[key].append(path)
                if path in standing:
                    self._made[key] = len(self._recorded[key])

    def go_on(self) -> None:
        """The agent outlived the process that it spoke to, and goes on: it made all of the recorded
        calls. One that never ended is the one that it makes again, having lost its connection."""
        results = self._session.history.results
        for key, paths in self._recorded.items():
            # Of equal ones, the one that never ended may have begun first.
            paths.sort(key=lambda path: path not in results)
            self._made[key] = sum(path in results for path in paths)

    @property
    def schemas(self) -> list[dict[str, object]]:
        return [one.schema for one in self.tools.values()]

    @property
    def is_busy(self) -> bool:
        return any(use.listeners for uses in self._uses.values() for use in uses)

    def hear(self, name: str, arguments: str, *, call_id: str = "") -> "ToolHearing":
        """The call that this is. Two with one `call_id` are one call, however often it is made, in
        this attempt and in later ones."""
        if self._closed:
            raise RequestRejected(
                409, "this attempt is over; a newer one goes on", code="attempt_over"
            )
        call = self._checked(name, arguments, call_id)
        key = key_of(call.name, call.arguments, call.id)
        use = self._named.get(call_id) if call_id else None
        if use is not None and use.key != key:
            words = f"the id {call_id!r} was given to another call"
            raise RequestRejected(400, words, code="idempotency_key_in_use")
        use = use or self._asked_before(key) or self._begun(key, call)
        if call_id:
            self._named[call_id] = use
        use.listeners += 1
        return ToolHearing(use)

    def _checked(self, name: str, arguments: str, call_id: str) -> ToolCall:
        if len(call_id) > LONGEST_ID or not (call_id.isascii() and call_id.isprintable()):
            raise RequestRejected(
                400, f"an id has at most {LONGEST_ID} characters, all of them ASCII"
            )
        tool = self.tools.get(name)
        if tool is None:
            known = ", ".join(self.tools) or "none"
            words = f"there is no tool {shortened(name, 100)!r}; there are: {known}"
            raise RequestRejected(404, words, code="unknown_tool")
        # As it is compared: an agent that is started again may write the same arguments otherwise.
        written = digest.arguments_of(arguments)
        try:
            tool.bind(written)
        except ToolSaysNo as no:
            raise RequestRejected(
                400, str(no), param=argument_in(str(no)), code="invalid_arguments"
            ) from no
        return ToolCall(call_id, FunctionCall(name, written))

    def _asked_before(self, key: bytes) -> _Use | None:
        """A call that nobody listens to any more, and whose result nobody heard, is asked again;
        others with the same arguments are others."""
        return next(
            (one for one in self._uses[key] if not one.listeners and not one.delivered), None
        )

    def _begun(self, key: bytes, call: ToolCall) -> _Use:
        # An id says which call it is; without one, those that were made before are others.
        made = 0 if call.id else self._made.get(key, 0)
        occurrence = made + len(self._uses[key])
        known = self._recorded[key]
        replayed = occurrence < len(known)
        path = known[occurrence] if replayed else f"{self._number()}.0.0"
        work = self._run(path, call)
        job = asyncio.create_task(work, name=f"tool {call.name} of {self._session.name}")
        use = _Use(key, job, replayed and path in self._session.history.results)
        self._uses[key].append(use)
        return use

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
        """The attempt is over: what still runs is given a moment, and then cut off."""
        self._closed = True
        jobs = [use.job for uses in self._uses.values() for use in uses]
        running = [job for job in jobs if not job.done()]
        if running:
            await asyncio.wait(running, timeout=LAST_SECONDS)
            for job in running:
                job.cancel()
            await asyncio.wait(running)
        for job in jobs:
            _ = job.cancelled() or job.exception()


class ToolHearing:
    """One connection that waits for a result."""

    def __init__(self, use: _Use):
        self._use = use

    @property
    def replayed(self) -> bool:
        return self._use.replayed

    async def result(self) -> ToolResult:
        """Cancelling it ends the waiting, not the tool."""
        try:
            return await asyncio.shield(self._use.job)
        except RunStopped as stopped:
            raise RequestRejected(503, str(stopped), code="stopping") from stopped
        except HoldfastError as error:
            raise RequestRejected(503, redact(str(error)), code=str(error.cause)) from error
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
            raise RequestRejected(409, "the attempt is over", code="attempt_over") from None

    def leave(self, *, delivered: bool) -> None:
        self._use.listeners -= 1
        self._use.delivered = self._use.delivered or delivered

    def miss(self) -> None:
        """What was taken for delivered did not arrive."""
        self._use.delivered = False


def key_of(name: str, arguments: str, call_id: str) -> bytes:
    """The digest of everything that makes a call this one."""
    parts = (name, digest.arguments_of(arguments), call_id)
    text = "\0".join(parts).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16).digest()


def argument_in(words: str) -> str | None:
    """The argument that a refusal is about, where it names one."""
    found = _ARGUMENT.search(words)
    return None if found is None else found[1] or found[2]
