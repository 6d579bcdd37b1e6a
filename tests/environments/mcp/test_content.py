"""What tools of a real MCP server answer, and what the model is shown of it."""

import asyncio
from collections.abc import Iterator

import pytest

from holdfast.environments.mcp import McpEnvironment
from holdfast.records.errors import ToolSaysNo
from holdfast.records.step import Contract
from support.environments.mcp_servers.keeping import call, stdio


class Open:
    """A server's environment that is open over several tests, each of which runs the loop."""

    def __init__(self, runner: asyncio.Runner, environment: McpEnvironment):
        self.runner = runner
        self.environment = environment
        self.first = runner.run(environment.reset(seed=7))

    def call(self, name: str, /, **arguments: object) -> str:
        return self.runner.run(call(self.environment, name, **arguments))

    def step(self, action: str) -> object:
        return self.runner.run(self.environment.step(action))

    def tool(self, name: str):
        return next(tool for tool in self.environment.tools if tool.name == name)


@pytest.fixture(scope="module")
def toolbox() -> Iterator[Open]:
    with asyncio.Runner() as runner:
        environment = stdio("toolbox", env={"GREETING": "hello"}).environment()
        yield Open(runner, environment)
        runner.run(environment.close())


def test_a_tool_has_the_name_description_and_schema_that_its_server_gave_it(toolbox):
    schema = toolbox.tool("add").schema["function"]
    assert schema["name"] == "add"
    assert schema["description"] == "Adds two numbers."
    assert schema["parameters"]["required"] == ["a", "b"]
    assert schema["parameters"]["properties"]["a"]["type"] == "integer"


def test_hints_of_the_server_decide_about_interrupted_calls(toolbox):
    assert toolbox.tool("echo").contract is Contract.IDEMPOTENT
    assert toolbox.tool("add").contract is Contract.IDEMPOTENT
    assert toolbox.tool("refuse").contract is Contract.AT_MOST_ONCE


def test_text_is_shown_as_it_is(toolbox):
    assert toolbox.call("echo", text="two\nlines") == "two\nlines"
    assert toolbox.call("add", a=2, b=3) == "5"


def test_structured_content_is_shown_as_json_where_there_is_no_text(toolbox):
    assert toolbox.call("weigh") == '{"grams":12,"of":"kelp"}'


def test_what_is_no_text_is_named_with_its_type_and_size(toolbox):
    assert toolbox.call("look").splitlines() == [
        "a view",
        "[image: image/png, 1024 bytes]",
        "[audio: audio/wav, 3 bytes]",
        "[resource: file:///map, unknown type, 7 bytes]",
        "a note",
    ]


def test_odd_characters_arrive(toolbox):
    assert toolbox.call("odd") == "\u202e\x00\U0001f9ff e\u0301 \ufeff\u2028 \ud7ff"


def test_ten_megabytes_arrive(toolbox):
    tool = toolbox.tool("flood")
    result = toolbox.runner.run(tool.invoke({"size": 10_000_000}))
    assert result == "x" * 10_000_000
    assert len(tool.render_result(result)) < 1_000_000


def test_an_error_of_the_tool_is_a_no(toolbox):
    with pytest.raises(ToolSaysNo, match="out of kelp"):
        toolbox.call("refuse", why="out of kelp")


def test_arguments_that_the_server_does_not_take_are_a_no(toolbox):
    for action in ('{"name": "add", "arguments": {"a": "many", "b": 1}}', '{"name": "add"}'):
        with pytest.raises(ToolSaysNo, match=r"validation|[Ii]nvalid"):
            toolbox.step(action)


def test_arguments_that_cannot_be_written_are_a_no(toolbox):
    with pytest.raises(ToolSaysNo):
        toolbox.runner.run(toolbox.tool("echo").invoke({"text": "\ud800"}))


def test_a_server_that_prints_to_stdout_still_answers(toolbox, capfd):
    assert toolbox.call("babble") == "said"
    assert toolbox.call("echo", text="on") == "on"
    assert capfd.readouterr() == ("", "")


def test_a_step_is_a_tool_call_in_json(toolbox):
    assert toolbox.step('{"name": "add", "arguments": {"a": 1, "b": 1}}') == "2"
    with pytest.raises(ToolSaysNo, match="in JSON"):
        toolbox.step("add 1 and 1")
    with pytest.raises(ToolSaysNo, match="there is no tool 'multiply'; the tools are: echo, add"):
        toolbox.step('{"name": "multiply"}')


def test_a_server_gets_what_it_is_given_and_not_all_of_the_environment(toolbox):
    assert toolbox.call("variable", name="GREETING") == "hello"
    assert toolbox.call("variable", name="HOLDFAST_SEED") == "7"
    assert toolbox.call("variable", name="PYTEST_CURRENT_TEST") == "unset"


def test_a_tool_that_has_questions_of_its_own_is_a_no(toolbox):
    with pytest.raises(ToolSaysNo):
        toolbox.call("greet")
    assert toolbox.call("echo", text="on") == "on"


def test_calls_of_one_session_run_side_by_side(toolbox):
    async def both():
        slow = asyncio.create_task(call(toolbox.environment, "sleep", seconds=600))
        await asyncio.sleep(0)
        fast = await call(toolbox.environment, "echo", text="first")
        assert not slow.done()
        slow.cancel()
        await asyncio.wait({slow})
        return fast, slow.cancelled()

    assert toolbox.runner.run(both()) == ("first", True)


def test_the_server_s_instructions_come_with_the_first_observation(toolbox):
    assert toolbox.first.text == ""
    assert toolbox.first.info == {"instructions": "Use the tools."}


def test_a_tool_that_the_server_does_not_know_is_a_no(toolbox):
    with pytest.raises(ToolSaysNo, match="no_such_tool"):
        toolbox.runner.run(toolbox.environment._session.call("no_such_tool", {}))
