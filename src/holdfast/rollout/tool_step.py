"""One tool call. Its intent is durable before it runs, and its result afterwards.

The intent is written last, when the call has its thread or process and could begin at once. So a
call with an intent has begun or is about to begin. A call that waits for a thread or a process has
recorded nothing.

A mistake of the policy (an unknown tool, invalid arguments, a tool that raises `ToolSaysNo`) is a
result that the model sees. A failure of infrastructure is not shown to the model:

- A call that raised an error or timed out has ended. It fails the attempt. The next attempt makes
  the call again, with the same idempotency key and another intent, whatever the tool's contract.
- If the process died during a call, nobody knows whether the call ended, so the tool's contract
  decides. If the contract forbids another call, the model is told about the interruption. The
  trajectory then counts as a failure of infrastructure (`InterruptedCall`), unless the run says
  otherwise.
"""

import asyncio
import hashlib
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager

from msgspec import structs

from holdfast.records.errors import (
    EnvironmentBroken,
    HoldfastError,
    InterruptedCall,
    ThreadsHang,
    ToolBug,
    ToolSaysNo,
)
from holdfast.records.failure import as_exception
from holdfast.records.message import ToolCall
from holdfast.records.step import INTERRUPTED_CALL, Contract, ToolIntent, ToolResult
from holdfast.rollout.episodes.environment import Observation, check_observation
from holdfast.rollout.episodes.episode import BoundTool
from holdfast.rollout.episodes.restore import EPISODE_OVER
from holdfast.rollout.replay import divergence
from holdfast.rollout.replay.current_code import StepScope
from holdfast.rollout.replay.prompt import fingerprint
from holdfast.rollout.replay.session import Session, is_accident
from holdfast.rollout.threads.contain import end_tasks
from holdfast.rollout.threads.mailbox import Begin
from holdfast.rollout.tools.result import is_bug
from holdfast.rollout.tools.tool import KEY_PARAMETER, Function, Tool, as_tool

INTERRUPTED = "This call was interrupted; it is unknown whether it took effect. It is not repeated."


class UnknownTool(ToolSaysNo):
    """The model called a tool that it was not offered."""


async def run_calls(
    session: Session,
    paths: Sequence[str],
    calls: Sequence[ToolCall],
    tools: "Sequence[Tool | Function]",
) -> tuple[list[ToolResult], float]:
    """Runs the calls, and returns their results in the order of the calls, with the seconds that
    they took.

    Calls run concurrently, but calls in the same environment run one after the other. If a call
    raises an error, the other calls finish first, and their results are recorded.
    """
    known = [as_tool(tool) for tool in tools]
    by_name = {tool.name: tool for tool in reversed(known)}
    called = [by_name.get(call.function.name) for call in calls]
    queues: dict[str, list[int]] = {}
    for index, tool in enumerate(called):
        queue = tool.episode.path if isinstance(tool, BoundTool) else f"call {index}"
        queues.setdefault(queue, []).append(index)
    results: dict[int, ToolResult] = {}

    async def work(queue: list[int]) -> float:
        for index in queue:
            tool, path, call = called[index], paths[index], calls[index]
            result = results[index] = await _run_call(session, path, call, tool=tool, tools=known)
            if isinstance(tool, BoundTool):
                tool.episode.add_result(result)
        return sum(results[index].seconds for index in queue)

    taken = await _wait_all([work(queue) for queue in queues.values()])
    return [results[index] for index in range(len(calls))], max(taken, default=0.0)


async def _wait_all(works: "Sequence[Coroutine[object, object, float]]") -> list[float]:
    """Runs all coroutines to their end and returns their results. Raises the error of the first
    coroutine that failed, in the given order."""
    if len(works) == 1:
        return [await works[0]]
    tasks = [asyncio.create_task(work) for work in works]
    try:
        if tasks:
            await asyncio.wait(tasks)
    finally:
        await end_tasks(tasks)
    return [task.result() for task in tasks]


async def _run_call(
    session: Session, path: str, call: ToolCall, *, tool: Tool | None, tools: Sequence[Tool]
) -> ToolResult:
    """Returns the call's recorded result, or else runs the call. The result is durable when it is
    returned."""
    mark = _fingerprint(call)
    intent = await session.match(
        path,
        ToolIntent,
        mark,
        lambda recorded: divergence.of_tool(recorded, call),
    )
    recorded = session.history.results.get(path)
    if intent is not None and recorded is not None:
        return recorded
    if intent is not None:
        session.state.check_running()
        if _may_not_repeat(session, intent, tool):
            return await _interrupted_result(session, intent)
        await session.go_live()
    key = _key(session, path, call) if intent is None else intent.idempotency_key
    return await _make_call(session, path, call, tool=tool, tools=tools, mark=mark, key=key)


def _may_not_repeat(session: Session, intent: ToolIntent, tool: Tool | None) -> bool:
    is_interrupted = intent.path in session.history.unfinished
    return is_interrupted and (tool is None or intent.contract is not Contract.IDEMPOTENT)


async def _interrupted_result(session: Session, intent: ToolIntent) -> ToolResult:
    """Records and returns the result that tells the model that the call was interrupted. If the
    group will replace the interrupted trajectory, fails the attempt instead."""
    group = session.context.spec.group
    if not group.keep_interrupted and group.refills(session.history.life):
        raise session.state.fail(InterruptedCall(intent.name), intent.path)
    result = ToolResult(intent.path, INTERRUPTED, error=INTERRUPTED_CALL)
    await session.log.append(result)
    return result


async def _make_call(
    session: Session,
    path: str,
    call: ToolCall,
    *,
    tool: Tool | None,
    tools: Sequence[Tool],
    mark: bytes,
    key: str,
) -> ToolResult:
    rejection = _rejection(call, tool, tools)
    if tool is not None:
        session.check_alive(path, f"tool {tool.name}")
    intent = ToolIntent(
        path=path,
        fingerprint=mark,
        name=call.function.name,
        arguments=call.function.arguments,
        call_id=call.id,
        contract=tool.contract if tool else Contract.IDEMPOTENT,
        idempotency_key=key,
        # A rejected call does not reach the environment.
        environment=tool.episode.path if isinstance(tool, BoundTool) and not rejection else "",
    )
    if rejection is not None:
        text = str(rejection) if tool is None else tool.render_result(str(rejection))
        result = ToolResult(path, text, error=type(rejection).__name__)
        await session.log.append(intent, result)
        return result
    assert tool is not None, "an unknown tool is rejected above"
    return await _run(session, intent, tool)


async def _run(session: Session, intent: ToolIntent, tool: Tool) -> ToolResult:
    if not isinstance(tool, BoundTool):
        return await _run_once(session, intent, tool)
    try:
        async with tool.episode.acting(intent.path):
            return await _run_once(session, intent, tool)
    except ToolSaysNo as no:
        # While this call waited for its turn, the previous one ended the episode.
        result = ToolResult(intent.path, str(no), error=type(no).__name__)
        await session.log.append(intent, result)
        return result


async def _run_once(session: Session, intent: ToolIntent, tool: Tool) -> ToolResult:
    arguments = tool.bind(intent.arguments)
    if tool.wants_key:
        arguments[KEY_PARAMETER] = intent.idempotency_key
    result = await _run_in_slot(session, intent, tool, arguments)
    await session.log.append(result)
    return result


async def _run_in_slot(
    session: Session, intent: ToolIntent, tool: Tool, arguments: dict[str, object]
) -> ToolResult:
    async with AsyncExitStack() as slot:
        with _fail_on_accident(session, intent, tool):
            begin = await slot.enter_async_context(tool.slot(arguments))
        session.state.check_usable()  # The call may have waited for long.
        await session.log.append(intent)
        return await _call(session, intent, tool, begin)


async def _call(
    session: Session, intent: ToolIntent, tool: Tool, begin: "Begin[object]"
) -> ToolResult:
    started, seen = session.clock.elapsed(), None
    deadline = asyncio.timeout(tool.caller_timeout)
    inside = StepScope(session, intent.path, in_environment=isinstance(tool, BoundTool))
    try:
        with _fail_on_accident(session, intent, tool, deadline):
            async with deadline, inside:
                outcome = await begin()
            seen = check_observation(outcome) if isinstance(outcome, Observation) else None
            content, error = tool.render_result(outcome if seen is None else seen.text), ""
    except ToolSaysNo as refusal:
        content, error = tool.render_result(str(refusal)), type(refusal).__name__
    result = ToolResult(intent.path, content, error, session.clock.elapsed() - started)
    if seen is None:
        return result
    return structs.replace(result, reward=seen.reward, done=seen.done, truncated=seen.truncated)


@contextmanager
def _fail_on_accident(
    session: Session, intent: ToolIntent, tool: Tool, deadline: asyncio.Timeout | None = None
) -> Iterator[None]:
    """Fails the attempt if the block raises an error that the policy did not cause."""
    try:
        yield
    except ToolSaysNo:
        raise
    except ThreadsHang as hang:  # The tool was not called.
        raise session.state.fail(hang, intent.path) from None
    except Exception as raised:
        broken = as_exception(raised)
        if not is_accident(broken):
            raise broken from None  # The group contains a ToolSaysNo or a reached limit.
        late = isinstance(broken, TimeoutError) and deadline is not None and deadline.expired()
        raise session.state.fail(_tool_error(tool, broken, late=late), intent.path) from raised


def _fingerprint(call: ToolCall) -> bytes:
    parts = (call.function.name, call.function.arguments, call.id)
    return fingerprint(*(part.encode("utf-8", "surrogatepass") for part in parts))


def _key(session: Session, path: str, call: ToolCall) -> str:
    """Returns the idempotency key of a call. It is the same whenever this call runs again, and
    changes when the trajectory is rolled out anew or forks."""
    history = session.history
    place = f"{session.name}\0{path}\0{call.id}\0{history.life}\0{len(history.forks)}"
    return hashlib.sha256(place.encode()).hexdigest()[:32]


def _tool_error(tool: Tool, root: Exception, *, late: bool) -> HoldfastError:
    if late:
        return EnvironmentBroken(f"tool {tool.name} did not end within {tool.timeout:g} s")
    reason = str(root) if isinstance(root, EnvironmentBroken) else f"{type(root).__name__}: {root}"
    message = f"tool {tool.name} broke: {reason}"
    # A call in an environment is repeated after the environment is restored.
    if isinstance(tool, BoundTool) or not is_bug(root):
        return EnvironmentBroken(message)
    return ToolBug(message)


def _rejection(call: ToolCall, tool: Tool | None, tools: Sequence[Tool]) -> ToolSaysNo | None:
    if tool is None:
        names = ", ".join(sorted(known.name for known in tools)) or "none"
        return UnknownTool(f"there is no tool {call.name!r}; the tools are: {names}")
    if isinstance(tool, BoundTool) and tool.episode.over:
        return ToolSaysNo(EPISODE_OVER)
    try:
        tool.bind(call.function.arguments)
    except ToolSaysNo as rejection:
        return rejection
    return None
