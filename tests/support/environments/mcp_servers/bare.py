"""A server without the mcp package, as old ones are: it knows the handshake alone, does one thing
at a time, keeps a count, and starts fast. Its odd bytes are not UTF-8."""

import json
import os
import signal
import sys
import time

count = 0


def rune() -> str:
    """Two surrogates, and a byte that `write` breaks."""
    return "\ud800 and \udfff"


def add_one() -> str:
    global count
    count += 1
    return str(count)


def kill_once(flag: str) -> str:
    """Kills the server the first time; the flag is a file that remembers."""
    if not os.path.exists(flag):
        with open(flag, "w"):
            os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


def pid() -> str:
    return str(os.getpid())


def hang() -> str:
    time.sleep(3600)
    return "never"


TOOLS = {tool.__name__: tool for tool in (rune, add_one, kill_once, pid, hang)}
HELLO = {
    "protocolVersion": "2024-11-05",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "bare", "version": "0"},
}


def answer(method: str, params: dict) -> dict:
    match method:
        case "initialize":
            return {"result": HELLO}
        case "tools/list":
            schema = {"type": "object"}
            return {"result": {"tools": [{"name": tool, "inputSchema": schema} for tool in TOOLS]}}
        case "tools/call":
            text = TOOLS[params["name"]](**params.get("arguments") or {})
            return {"result": {"content": [{"type": "text", "text": text}]}}
        case _:
            return {"error": {"code": -32601, "message": "what is that?"}}


def main() -> None:
    for line in sys.stdin:
        data = json.loads(line)
        if "id" in data:
            body = {"jsonrpc": "2.0", "id": data["id"]}
            body |= answer(data["method"], data.get("params") or {})
            sys.stdout.buffer.write(json.dumps(body).encode().replace(b" and ", b" \xff ") + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
