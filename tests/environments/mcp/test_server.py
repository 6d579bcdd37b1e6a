"""The description of an MCP server: what it takes, what it refuses, what it tells."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.environments import McpServer
from holdfast.environments.mcp.listing import ToolChoice, parse_contracts
from holdfast.records.encoding.redaction import redact
from holdfast.records.errors import EnvironmentBroken, UsageError
from holdfast.records.step import Contract
from support.environments.mcp_servers.keeping import ListeningBank, call, others, stdio


def test_making_one_starts_nothing_and_imports_nothing_heavy():
    code = (
        "import sys, holdfast.environments.mcp as m; m.McpServer.stdio('x').environment(); "
        "m.McpServer.http('http://127.0.0.1:1/mcp'); "
        "assert not {'mcp', 'anyio', 'httpx2', 'pydantic'} & set(sys.modules), 'heavy'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_tools_have_to_be_listed_before_an_environment_shows_them():
    with pytest.raises(UsageError, match=r"are not known yet: call `await server.tools\(\)` first"):
        _ = McpServer.stdio("x").environment().tools


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recovery": "snapshot"}, r"no snapshots\); choose one of replay, stateless, restart"),
        ({"recovery": "magic"}, "cannot recover by 'magic'"),
        ({"recovery": "replay", "shared": True}, "use shared=False, or recovery='stateless'"),
        ({"timeout": 0}, "`timeout` is 0"),
        ({"timeout": float("nan")}, "`timeout` is nan"),
        ({"tools": "add"}, r"\['add'\]"),
        ({"contract": "never"}, "`contract`: 'never'.*idempotent"),
        ({"contract": {"add": "never"}}, "`contract`: 'never'"),
        (
            {"recovry": "replay"},
            "no option recovry; its options are recovery, shared, .*, env, cwd",
        ),
        ({"sharedd": True, "token": "x"}, "no option sharedd, token;"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        McpServer.stdio("x", **options)


def test_options_of_a_url_that_are_unknown_are_refused():
    with pytest.raises(UsageError, match=r"no option recovry; .*recovery, .*, headers, token$"):
        McpServer.http("http://127.0.0.1:1/mcp", recovry="replay")


@pytest.mark.parametrize("arguments", [(["python", "s3cret.py"],), ("python", Path("s3cret.py"))])
def test_a_command_is_strings(arguments):
    with pytest.raises(
        UsageError, match=r"each of its arguments as a string.* given a (list|Po)"
    ) as no:
        McpServer.stdio(*arguments)
    assert "s3cret" not in str(no.value)


def test_a_url_that_is_none_is_refused():
    for url in ("python server.py", "ftp://host/x", "http://"):
        with pytest.raises(UsageError, match="is not an http or https URL"):
            McpServer.http(url)


def test_tools_that_the_server_does_not_have_are_refused_with_those_that_it_has():
    async def usage_error(**options: object) -> str:
        with pytest.raises(UsageError) as caught:
            await stdio("bare", **options).tools()
        assert not others()
        return str(caught.value)

    assert asyncio.run(usage_error(tools=["third"])) == (
        "`tools` names third, which the MCP server does not have; "
        "it has rune, add_one, kill_once, pid, hang"
    )
    assert "`contract` names third" in asyncio.run(usage_error(contract={"third": "idempotent"}))


def test_the_user_s_contract_wins_over_the_server_s_hints():
    from mcp_types import Tool, ToolAnnotations

    hinted = Tool(name="a", input_schema={}, annotations=ToolAnnotations(read_only_hint=True))
    plain = Tool(name="b", input_schema={})

    def contracts(setting: object) -> list[Contract]:
        return [
            item.contract
            for item in ToolChoice(contract=parse_contracts(setting)).of([hinted, plain])
        ]

    once, again, anew = Contract.AT_MOST_ONCE, Contract.IDEMPOTENT, Contract.RESTART
    assert contracts(None) == [again, once]
    assert contracts("restart") == [anew, anew]
    assert contracts({"a": "at_most_once"}) == [once, once]
    assert contracts({"b": "idempotent"}) == [again, again]


def test_tools_whose_names_would_be_the_same_are_refused():
    from mcp_types import Tool

    listed = [Tool(name="a.b", input_schema={}), Tool(name="a/b", input_schema={})]
    with pytest.raises(UsageError, match=r"a\.b and a/b would both be called a_b"):
        ToolChoice().of(listed)
    assert [item.name for item in ToolChoice(allowed=("a/b",)).of(listed)] == ["a_b"]


def test_secrets_of_a_url_and_its_headers_are_told_to_nobody():
    url = "https://ann:s3cr3tpw@example.org:8443/mcp?key=v3rysecret"
    server = McpServer.http(url, headers={"X-Api-Key": "h3adervalue"}, token="t0k3nt0k3n")
    assert server.described == "https://example.org:8443/mcp"
    assert repr(server) == "<McpServer https://example.org:8443/mcp>"
    assert server.identity == "/mcp"
    text = redact("ann s3cr3tpw h3adervalue t0k3nt0k3n")
    assert text == "ann [redacted] [redacted] [redacted]"


def test_a_server_that_cannot_be_reached_is_named_without_its_secrets():
    async def failure_of(server: McpServer) -> str:
        with pytest.raises(EnvironmentBroken) as caught:
            await server.tools()
        assert not others()
        return str(caught.value)

    with ListeningBank(token="open-sesame") as bank:
        wrong = asyncio.run(failure_of(McpServer.http(bank.url, token="0pen-barley")))
        assert f"MCP server {bank.url} did not begin a session" in wrong
        assert "HTTP 401 Unauthorized" in wrong
        assert "barley" not in wrong
        right = McpServer.http(f"{bank.url}?k=0pen-barley", token="open-sesame")
        assert len(asyncio.run(right.tools())) == 5
    unreachable = asyncio.run(
        failure_of(McpServer.http(f"{bank.url}?k=0pen-barley", token="sesame"))
    )
    assert f"MCP server {bank.url} did not begin a session (ConnectError" in unreachable
    assert "barley" not in unreachable


async def test_tools_of_two_servers_differ_by_their_prefix():
    first, two = stdio("bare"), stdio("bare", prefix="other_")
    environments = [first.environment(), two.environment()]
    for environment in environments:
        await environment.prepare()
        await environment.reset(seed=1)
    names = [tool.name for environment in environments for tool in environment.tools]
    answer = await call(environments[1], "other_rune")
    for environment in environments:
        await environment.close()
    assert not others()
    assert ([names[0], names[5], answer]) == ["rune", "other_rune", "? \ufffd ?"]
