"""An MCP server without the mcp package: JSON, line by line. The same for every client."""

import json
import sys

TOOLS = [
    {
        "name": "add",
        "description": "Adds.",
        "inputSchema": {"type": "object", "properties": {"a": {"type": "integer"}}},
        "annotations": {"readOnlyHint": True},
    },
    {"name": "picture", "inputSchema": {"type": "object"}},
    {"name": "structured", "inputSchema": {"type": "object"}},
    {"name": "broken", "inputSchema": {"type": "object"}},
    {"name": "dies", "inputSchema": {"type": "object"}},
]


def answer(method: str, params: dict) -> dict:
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "plain", "version": "1"},
            "instructions": f"hello, {params['clientInfo']['name']}",
        }
    if method == "tools/list":
        second = (params or {}).get("cursor") == "2"
        return {"tools": TOOLS[2:]} if second else {"tools": TOOLS[:2], "nextCursor": "2"}
    if method == "tools/call":
        return called(params["name"], params.get("arguments") or {})
    raise KeyError(method)


def called(name: str, arguments: dict) -> dict:
    if name == "add":
        return {"content": [{"type": "text", "text": str(arguments["a"] + 1)}]}
    if name == "picture":
        return {"content": [{"type": "image", "data": "QUJD", "mimeType": "image/png"}]}
    if name == "structured":
        return {"content": [], "structuredContent": {"b": 2}}
    if name == "broken":
        return {"content": [{"type": "text", "text": "no"}], "isError": True}
    sys.stderr.write("goodbye\n")
    sys.exit(3)


for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    reply: dict = {"jsonrpc": "2.0", "id": request["id"]}
    try:
        reply["result"] = answer(request["method"], request.get("params") or {})
    except KeyError as error:
        reply["error"] = {"code": -32601, "message": f"no method {error}"}
    print(json.dumps(reply), flush=True)
