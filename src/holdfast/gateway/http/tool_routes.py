"""The tools of an agent as HTTP routes, and as an MCP server.

    GET  {url}/tools            {"tools": […]}, as they are sent to a model
    POST {url}/tools/{name}     the arguments → {"content", "is_error", "error"}
    POST {url}/mcp              streamable HTTP, no session, responses in plain JSON

`Idempotency-Key` names a call. The best name is the id of the model's own tool call. Calls over MCP
do not have this id. Without the header, or an `idempotencyKey` in the call's `_meta`, a call is
identified by its arguments and by the number of equal calls before it.
"""

from collections.abc import Mapping

import msgspec
from aiohttp import web
from msgspec import Struct

from holdfast.gateway.calls.tool_calls import AgentTools, ToolSubscription
from holdfast.gateway.http.request import RequestContext
from holdfast.gateway.protocol.messages import RequestRejected

LIST = "/tools"
CALL = "/tools/"
CALL_ID_HEADER = "idempotency-key"


async def list_tools(context: RequestContext, tools: AgentTools) -> web.StreamResponse:
    schemas = tools.schemas
    if context.is_anthropic:
        schemas = [renamed_schema(schema, "input_schema") for schema in schemas]
    return await context.send_json({"tools": schemas})


async def call_tool(context: RequestContext, tools: AgentTools) -> web.StreamResponse:
    """Calls a tool and sends its result. A tool that refuses also has a result, with `is_error`,
    and the reason in `error`."""
    subscription = tools.subscribe(
        context.path.removeprefix(CALL),
        _text(await context.body()),
        call_id=context.request.headers.get(CALL_ID_HEADER, ""),
    )
    delivered = False
    try:
        result = await subscription.result()
        context.replayed = subscription.call.replayed
        body = {"content": result.content, "is_error": bool(result.error), "error": result.error}
        response = await context.send_json(body)
        delivered = True
    finally:
        context.leave(subscription, delivered=delivered)
    return response


def renamed_schema(schema: dict[str, object], parameters: str) -> dict[str, object]:
    """Returns a tool's schema without OpenAI's envelope. `parameters` is the name that its
    parameters get."""
    function = schema["function"]
    assert isinstance(function, dict), "a tool's schema has its function"
    return {
        "name": function["name"],
        "description": function["description"],
        parameters: function["parameters"],
    }


def _text(body: bytes) -> str:
    try:
        return body.decode() or "{}"
    except UnicodeDecodeError as error:
        raise RequestRejected(400, "the arguments are a JSON object, in UTF-8") from error


MCP = "/mcp"
VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26")
PARSE_ERROR, NO_METHOD, INVALID_PARAMS, INTERNAL = -32700, -32601, -32602, -32603


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
    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code = code


async def serve_mcp(context: RequestContext, tools: AgentTools) -> web.StreamResponse:
    """Handles one MCP message and responds to it."""
    try:
        message = msgspec.json.decode(await context.body(), type=_Message)
    except (ValueError, RecursionError) as error:
        return await _send_error(
            context, None, _Failed(PARSE_ERROR, f"no message: {error}"), status=400
        )
    if message.id is None or not message.method:
        # Notifications, and responses without a request, are accepted without an answer.
        return await context.send(b"", 202)
    try:
        if message.method == "tools/call":
            return await _call(context, message, tools)
        return await _send_result(context, message, _result(message, tools))
    except _Failed as error:
        return await _send_error(context, message.id, error)


def _result(message: _Message, tools: AgentTools) -> Mapping[str, object]:
    match message.method:
        case "initialize":
            version = (message.params or {}).get("protocolVersion")
            return {
                "protocolVersion": version if version in VERSIONS else VERSIONS[0],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "holdfast", "version": "1"},
            }
        case "ping":
            return {}
        case "tools/list":
            return {"tools": [renamed_schema(schema, "inputSchema") for schema in tools.schemas]}
        case _:
            raise _Failed(NO_METHOD, "there are initialize, ping, tools/list and tools/call")


async def _call(
    context: RequestContext, message: _Message, tools: AgentTools
) -> web.StreamResponse:
    subscription = _subscribe(context, message, tools)
    delivered = False
    try:
        result = await subscription.result()
        context.replayed = subscription.call.replayed
        content = [{"type": "text", "text": result.content}]
        body = {"content": content, "isError": bool(result.error)}
        response = await _send_result(context, message, body)
        delivered = True
    except RequestRejected as rejection:
        raise _Failed(INTERNAL, rejection.message) from rejection
    finally:
        context.leave(subscription, delivered=delivered)
    return response


def _subscribe(context: RequestContext, message: _Message, tools: AgentTools) -> ToolSubscription:
    try:
        call = msgspec.convert(message.params or {}, _Call)
    except msgspec.ValidationError as error:
        raise _Failed(INVALID_PARAMS, str(error)) from error
    header = context.request.headers.get(CALL_ID_HEADER, "")
    call_id = str((call.meta or {}).get("idempotencyKey", header))
    arguments = msgspec.json.encode(call.arguments or {}).decode()
    try:
        return tools.subscribe(call.name, arguments, call_id=call_id)
    except RequestRejected as rejection:
        code = INVALID_PARAMS if rejection.status in (400, 404) else INTERNAL
        raise _Failed(code, rejection.message) from rejection


async def _send_result(
    context: RequestContext, message: _Message, result: Mapping[str, object]
) -> web.StreamResponse:
    body = {"jsonrpc": "2.0", "id": message.id, "result": result}
    return await context.send_json(body)


async def _send_error(
    context: RequestContext, number: str | int | None, failed: _Failed, *, status: int = 200
) -> web.StreamResponse:
    error = {"code": failed.code, "message": str(failed)}
    body = {"jsonrpc": "2.0", "id": number, "error": error}
    return await context.send_json(body, status)
