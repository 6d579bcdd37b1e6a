"""A tool call's durable life: intent first, result after, and its contract in between.

What the policy did wrong (unknown tool, invalid arguments, a tool that says no) is a result that
the model is shown. What broke in the tool is no result at all: the attempt fails, and the next one
finds the intent.
"""

import asyncio
import hashlib
from collections.abc import Awaitable

from holdfast.records.errors import EnvironmentBroken, ToolSaysNo
from holdfast.records.message import ToolCall
from holdfast.records.step import INTERRUPTED_CALL, Contract, ToolIntent, ToolResult
from holdfast.rollout import difference
from holdfast.rollout.containment import as_exception, contained
from holdfast.rollout.prompt import fingerprint
from holdfast.rollout.session import Session
from holdfast.rollout.threads import DaemonThreads
from holdfast.rollout.tool import KEY_PARAMETER, Function, Tool, as_tool, result_text

INTERRUPTED = "This call was interrupted; it is unknown whether it took effect. It is not repeated."
_threads = DaemonThreads("tool calls")


class UnknownTool(ToolSaysNo):
    """The model called a tool that it was not given."""


async def run_call(
    session: Session, path: str, call: ToolCall, tools: "tuple[Tool | Function, ...]"
) -> ToolResult:
    """The recorded result, or a live one; durable when it is returned."""
    tool = next((one for one in map(as_tool, tools) if one.name == call.name), None)
    intent = await session.match(
        path,
        ToolIntent,
        _fingerprint(call),
        lambda recorded: difference.of_tool(recorded, call.name, call.arguments),
    )
    if intent is None:
        return await _first_call(session, path, call, tool, tools)
    recorded = session.history.results.get(path)
    return await _interrupted_call(session, intent, tool) if recorded is None else recorded


async def _first_call(
    session: Session,
    path: str,
    call: ToolCall,
    tool: Tool | None,
    tools: "tuple[Tool | Function, ...]",
) -> ToolResult:
    intent = ToolIntent(
        path=path,
        fingerprint=_fingerprint(call),
        name=call.name,
        arguments=call.arguments,
        call_id=call.id,
        contract=tool.contract if tool else Contract.IDEMPOTENT,
        idempotency_key=_key(session, path, call),
    )
    refused = _refusal(call, tool, tools)
    if refused is not None:
        result = ToolResult(path, str(refused), error=type(refused).__name__)
        await session.append(intent, result)
        return result
    await session.append(intent)
    assert tool is not None, "an unknown tool is refused above"
    return await _run(session, intent, tool)


async def _interrupted_call(session: Session, intent: ToolIntent, tool: Tool | None) -> ToolResult:
    """An intent without a result: the tool's contract decides."""
    session.check_running()
    if intent.contract is Contract.IDEMPOTENT and tool is not None:
        return await _run(session, intent, tool)
    result = ToolResult(intent.path, INTERRUPTED, error=INTERRUPTED_CALL)
    await session.append(result)
    return result


async def _run(session: Session, intent: ToolIntent, tool: Tool) -> ToolResult:
    started = session.clock.elapsed()
    try:
        arguments = tool.bind(intent.arguments)
        if tool.wants_key:
            arguments[KEY_PARAMETER] = intent.idempotency_key
        async with asyncio.timeout(tool.timeout) as deadline:
            content, error = result_text(await _call(tool, arguments)), ""
    except ToolSaysNo as refusal:
        content, error = result_text(str(refusal)), type(refusal).__name__
    except Exception as broken:
        late = isinstance(broken, TimeoutError) and deadline.expired()
        raise session.failed(_broken(tool, broken, late=late), intent.path) from broken
    result = ToolResult(intent.path, content, error, session.clock.elapsed() - started)
    await session.append(result)
    return result


async def _call(tool: Tool, arguments: dict[str, object]) -> object:
    if tool.is_async:
        found = tool.function(**arguments)
    else:
        found = await _threads.run(lambda: tool.function(**arguments))
    return await contained(found) if isinstance(found, Awaitable) else found


def _fingerprint(call: ToolCall) -> bytes:
    return fingerprint(call.name.encode(), call.arguments.encode(), call.id.encode())


def _key(session: Session, path: str, call: ToolCall) -> str:
    """The same whenever this call is run again; another in another life, or after a fork."""
    history = session.history
    place = f"{session.name}\0{path}\0{call.id}\0{history.life}\0{len(history.forks)}"
    return hashlib.sha256(place.encode()).hexdigest()[:32]


def _broken(tool: Tool, error: Exception, *, late: bool) -> EnvironmentBroken:
    if late:
        return EnvironmentBroken(f"tool {tool.name} did not end within {tool.timeout:g} s")
    root = as_exception(error)
    return EnvironmentBroken(f"tool {tool.name} broke: {type(root).__name__}: {root}")


def _refusal(
    call: ToolCall, tool: Tool | None, tools: "tuple[Tool | Function, ...]"
) -> ToolSaysNo | None:
    if tool is None:
        names = ", ".join(sorted(as_tool(one).name for one in tools)) or "none"
        return UnknownTool(f"there is no tool {call.name!r}; the tools are: {names}")
    try:
        tool.bind(call.arguments)
    except ToolSaysNo as refused:
        return refused
    return None
