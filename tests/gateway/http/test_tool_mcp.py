"""The tools as an MCP server, as the published client library finds them."""

import asyncio

import pytest

import holdfast
from holdfast.rollout.tools.tool import tools_of
from support.gateway.counter import exchange, opened, post

mcp = pytest.importorskip("mcp")


def shop(did: list[str]):
    @holdfast.tool(contract="at_most_once")
    async def pay(amount: int) -> str:
        """Moves money."""
        did.append(f"pay {amount}")
        if amount < 0:
            raise holdfast.ToolSaysNo("one cannot pay less than nothing")
        return f"paid {amount}"

    return tools_of([pay], where="tools")


def test_the_published_client_lists_and_calls_and_a_new_attempt_does_nothing_twice():
    did: list[str] = []

    async def use(url: str) -> list[str]:
        async with mcp.Client(url) as client:
            (tool,) = (await client.list_tools()).tools
            assert (tool.name, tool.description) == ("pay", "Moves money.")
            assert tool.input_schema["required"] == ["amount"]
            results = [await client.call_tool("pay", {"amount": n}) for n in (1, 2, 1, -1)]
            assert [result.is_error for result in results] == [False, False, False, True]
            return [result.content[0].text for result in results]

    async def run():
        async with opened() as (counter, trajectory, binding):
            trajectory.set_tools(shop(did))
            first = await use(f"{binding.bound_url}/mcp")
            assert first == ["paid 1", "paid 2", "paid 1", "one cannot pay less than nothing"]
            assert len(trajectory.session.history.steps) == 4
            async with counter.attempt() as (later, binding):
                later.set_tools(shop(did))
                assert await use(f"{binding.bound_url}/mcp") == first
        assert did == ["pay 1", "pay 2", "pay 1", "pay -1"]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("message", "status", "code"),
    [
        (b"{", 400, -32700),
        ({"jsonrpc": "2.0", "id": 1, "method": "resources/list"}, 200, -32601),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {}}, 200, -32602),
        (
            {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "steal"}},
            200,
            -32602,
        ),
        (
            {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "tools/call",
                "params": {"name": "pay", "arguments": {"amount": "x"}},
            },
            200,
            -32602,
        ),
    ],
)
def test_what_is_no_call_is_an_error_of_the_protocol(message, status, code):
    did: list[str] = []

    async def run():
        async with opened() as (counter, trajectory, binding):
            trajectory.set_tools(shop(did))
            reply = await exchange(counter.port, post("/mcp", message, binding))
            assert (reply.status, reply.json["error"]["code"]) == (status, code)
            notified = {"jsonrpc": "2.0", "method": "notifications/initialized"}
            assert (await exchange(counter.port, post("/mcp", notified, binding))).status == 202
            assert (await exchange(counter.port, post("/mcp", message))).status == 401

    asyncio.run(run())
    assert not did


def test_a_call_with_an_id_in_its_meta_is_one_call():
    did: list[str] = []

    async def run():
        async with opened() as (counter, trajectory, binding):
            trajectory.set_tools(shop(did))
            params = {"name": "pay", "arguments": {"amount": 1}, "_meta": {"idempotencyKey": "k"}}
            message = {"jsonrpc": "2.0", "id": "a", "method": "tools/call", "params": params}
            replies = [
                await exchange(counter.port, post("/mcp", message, binding)) for _ in range(2)
            ]
            assert replies[0].json == replies[1].json
            assert replies[0].json["id"] == "a"

    asyncio.run(run())
    assert did == ["pay 1"]


def test_what_is_left_empty_in_a_message_of_mcp_may_be_null():
    async def body():
        async with opened() as (counter, _, binding):
            request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": None}
            reply = await exchange(counter.port, post("/mcp", request, binding))
            assert reply.json["result"] == {"tools": []}
            call = {"name": "nothing", "arguments": None, "_meta": None}
            body = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}
            reply = await exchange(counter.port, post("/mcp", body, binding))
            assert "there is no tool 'nothing'" in reply.json["error"]["message"]

    asyncio.run(body())
