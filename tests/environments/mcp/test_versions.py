"""The same with version 1 of the mcp package as with version 2, whichever is installed.

HOLDFAST_MCP1_PYTHON names a Python that has version 1: then it is run there, too (`make interop`
does so in the environment that it installs).
"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.environments.mcp.connection import Stdio
from holdfast.environments.mcp.listing import ToolChoice
from holdfast.environments.mcp.session import McpSession
from holdfast.records.errors import EnvironmentBroken, ToolSaysNo
from holdfast.records.step import Contract

SERVERS = Path(__file__).parents[2] / "support" / "environments" / "mcp_servers"
SERVER = Stdio(sys.executable, (str(SERVERS / "plain.py"),))


def in_session(body):
    async def run():
        session = await McpSession.open(SERVER, timeout=30, handshake=True)
        try:
            return await body(session)
        finally:
            await session.close()

    return asyncio.run(run())


def test_tools_are_listed_over_all_pages_with_their_contracts():
    async def body(session):
        return ToolChoice().of(session.tools), session.instructions

    tools, instructions = in_session(body)
    assert [tool.name for tool in tools] == ["add", "picture", "structured", "broken", "dies"]
    assert tools[0].parameters["properties"] == {"a": {"type": "integer"}}
    assert (tools[0].contract, tools[1].contract) == (Contract.IDEMPOTENT, Contract.AT_MOST_ONCE)
    assert instructions == "hello, holdfast"


def test_answers_are_text_whatever_they_are():
    async def body(session):
        return [
            await session.call("add", {"a": 1}),
            await session.call("picture", {}),
            await session.call("structured", {}),
        ]

    assert in_session(body) == ["2", "[image: image/png, 3 bytes]", '{"b":2}']


def test_a_tool_that_says_no_says_why():
    async def body(session):
        with pytest.raises(ToolSaysNo, match="no"):
            await session.call("broken", {})
        return await session.call("add", {"a": 1})

    assert in_session(body) == "2"


def test_a_server_that_dies_in_a_call_is_told_at_once_with_its_last_words():
    async def body(session):
        with pytest.raises(EnvironmentBroken, match="goodbye"):
            await session.call("dies", {})
        assert not session.is_alive

    in_session(body)


@pytest.mark.skipif(
    not os.environ.get("HOLDFAST_MCP1_PYTHON"), reason="HOLDFAST_MCP1_PYTHON names no Python"
)
def test_all_of_it_with_version_1():
    python = os.environ["HOLDFAST_MCP1_PYTHON"]
    source = Path(__file__).parents[3] / "src"
    env = {**os.environ, "PYTHONPATH": str(source), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    del env["HOLDFAST_MCP1_PYTHON"]
    text = "import importlib.metadata as m; print(m.version('mcp'))"
    version = subprocess.run([python, "-c", text], capture_output=True, text=True, check=True)
    assert version.stdout.startswith("1."), "it has another version of mcp"
    command = [python, "-m", "pytest", "-q", "--noconftest", "-c", "/dev/null", __file__]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
