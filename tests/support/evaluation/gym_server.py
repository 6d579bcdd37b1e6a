"""A gym's server as MCP gyms have it: tools by MCP, rewards over HTTP beside them.

`python gym_of_ours.py --port N`. A player who counts to three has won. With HOLDFAST_GYM_FAULT=slow
the control plane stays silent about the first reward, with `status` it answers 500.
"""

import argparse
import asyncio
import json
import os

from aiohttp import web

PROTOCOL = "2025-03-26"


class Gym:
    def __init__(self):
        self.clients: dict[str, str] = {}
        self.games: dict[str, dict] = {}
        self.fault = os.environ.get("HOLDFAST_GYM_FAULT", "")

    async def mcp(self, request: web.Request) -> web.Response:
        if request.method == "DELETE":
            return web.Response(status=200)
        if request.method == "GET":
            return web.Response(status=405)
        body = await request.json()
        session = request.headers.get("mcp-session-id", "")
        if "id" not in body:
            return web.Response(status=202)
        answer = await self.answered(body, session)
        headers = {}
        if body["method"] == "initialize":
            session = f"mcp-{len(self.clients)}"
            self.clients[session] = body["params"]["clientInfo"]["_extra"]["session_id"] if (
                "_extra" in body["params"]["clientInfo"]
            ) else session  # fmt: skip
            headers["mcp-session-id"] = session
        return web.json_response({"jsonrpc": "2.0", "id": body["id"], **answer}, headers=headers)

    async def answered(self, message: dict, session: str) -> dict:
        match message["method"]:
            case "initialize":
                return {
                    "result": {
                        "protocolVersion": PROTOCOL,
                        "capabilities": {"tools": {}},
                        "serverInfo": {"name": "gym", "version": "1"},
                    }
                }
            case "tools/list":
                schema = {"type": "object", "properties": {"number": {"type": "integer"}}}
                tool = {"name": "say", "description": "Says a number.", "inputSchema": schema}
                return {"result": {"tools": [tool]}}
            case "tools/call":
                text = self.step(self.clients[session], message["params"]["arguments"])
                return {"result": {"content": [{"type": "text", "text": text}]}}
        return {"error": {"code": -32601, "message": "Method not found"}}

    def step(self, name: str, arguments: dict) -> str:
        game = self.games[name]
        right = arguments.get("number") == game["next"]
        game["next"] += right
        game["steps"] += 1
        game["reward"] = 0.25 if right else 0.0
        game["over"] = not right or game["next"] > 3
        return json.dumps({"heard": arguments.get("number"), "start": game["seed"]})

    async def control(self, request: web.Request) -> web.Response:
        name, what = request.headers["mcp-session-id"], request.match_info["what"]
        if what == "reset_session":
            if name in self.games:
                self.games[name] = self.new((await request.json())["seed"])
            return web.json_response({})
        game = self.games.setdefault(name, self.new(None))
        if what == "initial_state":
            return web.json_response({"observation": "count to three", "seed": game["seed"]})
        if what == "reward":
            if self.fault == "slow":
                self.fault = ""
                await asyncio.sleep(600)
            return web.json_response({"reward": game["reward"], "step_count": game["steps"]})
        if self.fault == "status":
            return web.Response(status=500, text="no status today")
        return web.json_response({"terminated": game["over"], "truncated": False})

    def new(self, seed: int | None) -> dict:
        return {"next": 1, "steps": 0, "reward": 0.0, "over": False, "seed": seed}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    gym = Gym()
    app = web.Application()
    app.router.add_route("*", "/mcp", gym.mcp)
    app.router.add_route("*", "/control/{what}", gym.control)
    port = parser.parse_args().port
    web.run_app(app, host="127.0.0.1", port=port, print=None, shutdown_timeout=0.1)


if __name__ == "__main__":
    main()
