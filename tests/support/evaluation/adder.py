"""The smallest MCP server: two tools, over stdin and stdout, without any package."""

import json
import os
import sys

TOOLS = [
    {
        "name": name,
        "description": f"{name}s two numbers.",
        "inputSchema": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    }
    for name in ("add", "multiply")
]


def answered(message: dict) -> dict:
    match message["method"]:
        case "initialize":
            return {
                "protocolVersion": message["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "adder", "version": "1"},
            }
        case "tools/list":
            return {"tools": TOOLS}
        case "tools/call":
            a, b = (message["params"]["arguments"][name] for name in "ab")
            number = a + b if message["params"]["name"] == "add" else a * b
            text = str(number + int(os.environ.get("ADDER_MORE", "0")))
            return {"content": [{"type": "text", "text": text}]}
    return {}


for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    answer = {"jsonrpc": "2.0", "id": request["id"]}
    if request["method"] in ("initialize", "tools/list", "tools/call", "ping"):
        answer["result"] = answered(request)
    else:
        answer["error"] = {"code": -32601, "message": "Method not found"}
    print(json.dumps(answer), flush=True)
