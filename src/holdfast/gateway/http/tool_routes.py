"""The tools of an agent as HTTP routes.

    GET  {url}/tools            {"tools": […]}, as they are sent to a model
    POST {url}/tools/{name}     the arguments → {"content", "is_error", "error"}

`Idempotency-Key` names a call: the id of the model's own tool call is the best one.
"""

import msgspec
from aiohttp import web

from holdfast.gateway.calls.tool_calls import AgentTools
from holdfast.gateway.http.request import RequestContext
from holdfast.gateway.protocol.messages import RequestRejected

LIST = "/tools"
CALL = "/tools/"
CALL_ID_HEADER = "idempotency-key"


async def list_tools(context: RequestContext, tools: AgentTools) -> web.StreamResponse:
    schemas = tools.schemas
    if context.is_anthropic:
        schemas = [renamed_schema(schema, "input_schema") for schema in schemas]
    return await context.response.send(msgspec.json.encode({"tools": schemas}))


async def call_tool(context: RequestContext, tools: AgentTools) -> web.StreamResponse:
    """A tool that says no has a result all the same: with `is_error`, and the reason in `error`."""
    subscription = tools.subscribe(
        context.path.removeprefix(CALL),
        _text(await context.body()),
        call_id=context.request.headers.get(CALL_ID_HEADER, ""),
    )
    delivered = False
    try:
        result = await subscription.result()
        context.replayed = subscription.replayed
        body = {"content": result.content, "is_error": bool(result.error), "error": result.error}
        response = await context.response.send(msgspec.json.encode(body))
        delivered = True
    finally:
        context.leave(subscription, delivered=delivered)
    return response


def renamed_schema(schema: dict[str, object], parameters: str) -> dict[str, object]:
    """A tool's schema with its parameters under another name, and without OpenAI's envelope."""
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
