"""The tools as an MCP server: streamable HTTP without a session, each answer plain JSON.

What agents and coding programs speak. Calls have no id of the model's here: which one a call is
goes by its arguments and by how often they were given. A client that wants to be exact sends
`Idempotency-Key`, or an `idempotencyKey` in the call's `_meta`.
"""

from collections.abc import Mapping

import msgspec
from aiohttp import web
from msgspec import Struct

from holdfast.gateway.calls.tool_calls import AgentTools, ToolHearing
from holdfast.gateway.http.request import Visit
from holdfast.gateway.http.tool_routes import NAMING
from holdfast.gateway.protocol.messages import RequestRejected

PATH = "/mcp"
VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26")
PARSE_ERROR, INVALID_REQUEST, NO_METHOD, INVALID_PARAMS, INTERNAL = (
    -32700,
    -32600,
    -32601,
    -32602,
    -32603,
)


class _Message(Struct):
    jsonrpc: str
    method: str = ""
    id: str | int | None = None
    params: dict[str, object] | None = None


class _Call(Struct):
    name: str
    arguments: dict[str, object] | None = None
    meta: dict[str, object] | None = msgspec.field(name="_meta", default=None)


class _Failed(Exception):
    def __init__(self, code: int, words: str):
        super().__init__(words)
        self.code = code


async def serve(visit: Visit, tools: AgentTools) -> web.StreamResponse:
    """One message, and its answer."""
    try:
        message = msgspec.json.decode(await visit.body(), type=_Message)
    except (ValueError, RecursionError) as error:
        return await _failed(visit, None, _Failed(PARSE_ERROR, f"no message: {error}"), status=400)
    if message.id is None or not message.method:
        # Notifications, and answers to what was never asked: taken, and nothing follows.
        return await visit.telling.whole(b"", 202)
    try:
        if message.method == "tools/call":
            return await _called(visit, message, tools)
        return await _answered(visit, message, _result(message, tools))
    except _Failed as failed:
        return await _failed(visit, message.id, failed)


def _result(message: _Message, tools: AgentTools) -> Mapping[str, object]:
    match message.method:
        case "initialize":
            wanted = (message.params or {}).get("protocolVersion")
            return {
                "protocolVersion": wanted if wanted in VERSIONS else VERSIONS[0],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "holdfast", "version": "1"},
            }
        case "ping":
            return {}
        case "tools/list":
            return {"tools": [_shown(one) for one in tools.schemas]}
        case _:
            raise _Failed(NO_METHOD, "there are initialize, ping, tools/list and tools/call")


async def _called(visit: Visit, message: _Message, tools: AgentTools) -> web.StreamResponse:
    hearing = visit.tool = _heard(visit, message, tools)
    delivered = False
    try:
        result = await hearing.result()
        visit.replayed = hearing.replayed
        content = [{"type": "text", "text": result.content}]
        told = {"content": content, "isError": bool(result.error)}
        response = await _answered(visit, message, told)
        delivered = True
    except RequestRejected as refused:
        raise _Failed(INTERNAL, refused.message) from refused
    finally:
        hearing.leave(delivered=delivered)
    return response


def _heard(visit: Visit, message: _Message, tools: AgentTools) -> ToolHearing:
    try:
        call = msgspec.convert(message.params or {}, _Call)
    except msgspec.ValidationError as error:
        raise _Failed(INVALID_PARAMS, str(error)) from error
    named = (call.meta or {}).get("idempotencyKey", visit.request.headers.get(NAMING, ""))
    arguments = msgspec.json.encode(call.arguments or {}).decode()
    try:
        return tools.hear(call.name, arguments, call_id=str(named))
    except RequestRejected as refused:
        code = INVALID_PARAMS if refused.status in (400, 404) else INTERNAL
        raise _Failed(code, refused.message) from refused


def _shown(schema: dict[str, object]) -> dict[str, object]:
    function = schema["function"]
    assert isinstance(function, dict), "a tool's schema has its function"
    return {
        "name": function["name"],
        "description": function["description"],
        "inputSchema": function["parameters"],
    }


async def _answered(
    visit: Visit, message: _Message, result: Mapping[str, object]
) -> web.StreamResponse:
    told = {"jsonrpc": "2.0", "id": message.id, "result": result}
    return await visit.telling.whole(msgspec.json.encode(told))


async def _failed(
    visit: Visit, number: str | int | None, failed: _Failed, *, status: int = 200
) -> web.StreamResponse:
    error = {"code": failed.code, "message": str(failed)}
    told = {"jsonrpc": "2.0", "id": number, "error": error}
    return await visit.telling.whole(msgspec.json.encode(told), status)
