"""The tool endpoint: how an agent lists the tools that it was given, and calls them.

    GET  {url}/tools            {"tools": […]}, as they are shown to a model
    POST {url}/tools/{name}     the arguments → {"content", "is_error", "error"}

`Idempotency-Key` names a call: the id of the model's own tool call is the best one.
"""

import msgspec
from aiohttp import web

from holdfast.gateway.calls.tool_calls import AgentTools
from holdfast.gateway.http.request import Visit
from holdfast.gateway.protocol.messages import RequestRejected
from holdfast.records.step import ToolResult

LIST = "/tools"
CALL = "/tools/"
NAMING = "idempotency-key"


async def list_tools(visit: Visit, tools: AgentTools) -> web.StreamResponse:
    shown = tools.schemas
    if visit.is_anthropic:
        shown = [_for_anthropic(one) for one in shown]
    return await visit.telling.whole(msgspec.json.encode({"tools": shown}))


async def call_tool(visit: Visit, tools: AgentTools) -> web.StreamResponse:
    """A tool that says no has a result all the same: `is_error` tells, and `error` why."""
    hearing = visit.tool = tools.hear(
        visit.path.removeprefix(CALL),
        _text(await visit.body()),
        call_id=visit.request.headers.get(NAMING, ""),
    )
    delivered = False
    try:
        result = await hearing.result()
        visit.replayed = hearing.replayed
        response = await visit.telling.whole(msgspec.json.encode(told(result)))
        delivered = True
    finally:
        hearing.leave(delivered=delivered)
    return response


def told(result: ToolResult) -> dict[str, object]:
    return {"content": result.content, "is_error": bool(result.error), "error": result.error}


def _text(body: bytes) -> str:
    try:
        return body.decode() or "{}"
    except UnicodeDecodeError as error:
        raise RequestRejected(400, "the arguments are a JSON object, in UTF-8") from error


def _for_anthropic(schema: dict[str, object]) -> dict[str, object]:
    function = schema["function"]
    assert isinstance(function, dict), "a tool's schema has its function"
    return {
        "name": function["name"],
        "description": function["description"],
        "input_schema": function["parameters"],
    }
