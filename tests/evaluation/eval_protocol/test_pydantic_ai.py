"""Agents of pydantic-ai and graphs of LangGraph as processors of rows."""

from support.evaluation.evaluation_project import EvaluationProject

PYDANTIC = """
from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from holdfast.evaluation import Message, PydanticAgentRolloutProcessor, evaluation_test

def answer(messages, info):
    asked = [part.part_kind for message in messages for part in message.parts]
    if "tool-return" in asked:
        return ModelResponse(parts=[TextPart(content="it is 42")])
    return ModelResponse(parts=[ToolCallPart(tool_name="look", args={"where": "there"})])

def agent_factory(config):
    assert config.completion_params["model"] == "somebody-elses"
    agent = Agent(FunctionModel(answer))

    @agent.tool_plain
    def look(where: str) -> str:
        \"\"\"Looks.\"\"\"
        return f"42 {where}"

    return agent

@evaluation_test(
    input_messages=[[[
        Message(role="system", content="be brief"), Message(role="user", content="what is it?")
    ]]],
    completion_params=[{"model": "somebody-elses"}],
    rollout_processor=PydanticAgentRolloutProcessor(agent_factory),
)
def test_it(row):
    roles = " ".join(one.role for one in row.messages)
    assert roles == "system user assistant tool assistant"
    (call,) = row.messages[2].tool_calls
    assert (call.function.name, call.function.arguments) == ("look", '{"where":"there"}')
    assert row.messages[3].tool_call_id == call.id
    assert row.messages[3].content == "42 there"
    assert row.messages[-1].content == "it is 42"
    assert row.tools[0]["function"]["name"] == "look"
    return 1.0
"""
LANGGRAPH = """
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from holdfast.evaluation import LangGraphRolloutProcessor, Message, evaluation_test

def graph_factory(config):
    async def reply(state):
        said = state["messages"][-1].content
        return {"messages": [AIMessage(content=f"{said}? {config.completion_params['model']}!")]}

    graph = StateGraph(MessagesState)
    graph.add_node("reply", reply)
    graph.add_edge(START, "reply")
    graph.add_edge("reply", END)
    return graph.compile()

@evaluation_test(
    input_messages=[[[Message(role="user", content="what is it")]]],
    completion_params=[{"model": "somebody-elses"}],
    rollout_processor=LangGraphRolloutProcessor(graph_factory=graph_factory),
)
def test_it(row):
    assert [one.role for one in row.messages] == ["user", "assistant"]
    assert row.messages[-1].content == "what is it? somebody-elses!"
    return 1.0
"""


def test_a_pydantic_ai_agent_makes_a_row(project: EvaluationProject) -> None:
    project.write(PYDANTIC, head="")
    project.run("-W", "default", policy=False).assert_outcomes(passed=1)


def test_a_graph_makes_a_row(project: EvaluationProject) -> None:
    project.write(LANGGRAPH, head="")
    project.run("-W", "default", policy=False).assert_outcomes(passed=1)


def test_a_graph_that_fails_fails_its_row(project: EvaluationProject) -> None:
    project.write(
        LANGGRAPH.replace("said = state", "raise KeyError('gone'); said = state"), head=""
    )
    result = project.run("-W", "default", policy=False)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*KeyError: 'gone'*"])
