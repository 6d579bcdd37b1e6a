"""Agents whose tools are those of the MCP servers of a file."""

import json
import sys
from pathlib import Path

import pytest

from holdfast.evaluation.eval_protocol.agent import AgentRolloutProcessor, servers_of
from holdfast.records.errors import UsageError
from holdfast.records.message import user
from holdfast.records.task import Task
from holdfast.rollout.processors.processor import fingerprint_of
from support.engine.local_run import LocalRun
from support.paths import SUPPORT
from support.rollout.stage import Oracle, text_of

ADDER = SUPPORT / "evaluation" / "adder.py"


def config(folder: Path, servers: object) -> Path:
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


@pytest.fixture
def adder(tmp_path) -> Path:
    return config(tmp_path, {"adder": {"command": sys.executable, "args": [str(ADDER)]}})


def call(name: str) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {{"a": 2, "b": 3}}}}</tool_call>'


def calling(name: str):
    return lambda request: "Done." if call(name) in text_of(request.prompt) else call(name)


def performed(processor, policy, *, tools: tuple = (), **options) -> LocalRun:
    local = LocalRun(policy=Oracle(policy))
    local.tasks = [Task(id="a", messages=(user("2 and 3?"),), tools=tools)]
    local.run(processor, **options)
    return local


def results(local: LocalRun) -> list[str]:
    return [result.content for result in local.history().results.values()]


def test_the_servers_tools_are_called_until_no_more_are_wanted(adder):
    local = performed(AgentRolloutProcessor(mcp_config_path=adder), calling("add"))
    assert local.statuses() == {"a/0": ("COMPLETED", True)}
    assert results(local) == ["5"]
    assert "multiplys two numbers" in text_of(local.policy.requests[0].prompt)


def test_a_row_that_names_tools_is_shown_those_alone(adder):
    named = ({"type": "function", "function": {"name": "multiply"}},)
    processor = AgentRolloutProcessor(mcp_config_path=adder)
    local = performed(processor, calling("multiply"), tools=named)
    assert results(local) == ["6"]
    assert "adds two numbers" not in text_of(local.policy.requests[0].prompt)
    unknown = ({"type": "function", "function": {"name": "divide"}},)
    failed = performed(processor, calling("add"), tools=unknown, max_retry=0)
    (failure,) = failed.history().failures
    assert "names the tool 'divide', which does not exist" in failure.message


def test_without_servers_it_answers_in_one_turn():
    local = performed(AgentRolloutProcessor(), lambda request: "Five.")
    assert len(local.policy.requests) == 1


def test_steps_are_a_limit(adder):
    processor = AgentRolloutProcessor().configured(mcp_config_path=adder, steps=2)
    local = performed(processor, lambda request: call("add"))
    assert local.statuses() == {"a/0": ("TRUNCATED", True)}
    assert len(local.policy.requests) == 2


def test_what_the_decorator_says_configures_a_new_one(adder, tmp_path):
    plain = AgentRolloutProcessor(system_prompt="Be brief.", max_tokens=100)
    made = plain.configured(mcp_config_path=str(adder))
    assert (made.system_prompt, made.limits.tokens) == ("Be brief.", 100)
    assert fingerprint_of(made) != fingerprint_of(plain)
    assert fingerprint_of(made) != fingerprint_of(made.configured(steps=3))
    for arguments in ({"server_script_path": "x.py"}, {"rollout_processor_kwargs": {"port": 1}}):
        with pytest.raises(UsageError, match="mcp_config_path"):
            plain.configured(**arguments)


# --- the file


def test_variables_of_the_environment_are_handed_on_by_name_or_filled_in(tmp_path, monkeypatch):
    monkeypatch.setenv("ADDER_MORE", "10")
    monkeypatch.setenv("TEN", "10")
    for env in (["ADDER_MORE"], {"ADDER_MORE": "${TEN}"}, {"ADDER_MORE": "10"}):
        path = config(
            tmp_path, {"adder": {"command": sys.executable, "args": [str(ADDER)], "env": env}}
        )
        local = performed(AgentRolloutProcessor(mcp_config_path=path), calling("add"))
        assert results(local) == ["15"]


def test_servers_behind_urls_are_named_too(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "s3cret")
    entry = {"url": "http://127.0.0.1:1/mcp", "authorization": "Bearer $SECRET"}
    (server,) = servers_of(config(tmp_path, {"far": entry}))
    assert server.described == "http://127.0.0.1:1/mcp"
    assert "s3cret" not in repr(server)


@pytest.mark.parametrize(
    ("servers", "message"),
    [
        ({}, "names no servers"),
        ([], "names no servers"),
        ({"a": 1}, "server 'a' is an object"),
        ({"a": {"args": []}}, "server 'a' wants a command"),
        ({"a": {"command": "c", "args": "x"}}, "a list of args"),
        (
            {"a": {"command": "c", "env": ["NOT_SET_ANYWHERE"]}},
            "NOT_SET_ANYWHERE, which is not set",
        ),
        ({"a": {"command": "c", "env": 1}}, "env is a list of names"),
    ],
)
def test_a_bad_entry_is_told(tmp_path, servers, message):
    with pytest.raises(UsageError, match=message):
        servers_of(config(tmp_path, servers))


def test_a_bad_file_is_told(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        AgentRolloutProcessor(mcp_config_path=tmp_path / "nowhere.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(UsageError, match="cannot be read"):
        servers_of(tmp_path / "bad.json")
