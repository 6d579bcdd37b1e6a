"""A ReAct agent of LangGraph, on LangChain's OpenAI model; `--stream` streams its tokens."""

import os
import sys

from adding import crash, read_task, tell_pid
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

counted = 0


def add(a: int, b: int) -> str:
    """Adds two numbers."""
    global counted
    counted += 1
    crash(counted)
    return str(a + b)


def main() -> None:
    tell_pid()
    streaming = "--stream" in sys.argv
    model = ChatOpenAI(model=os.environ["HOLDFAST_MODEL"], streaming=streaming).bind_tools([add])
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([add]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition, {"tools": "tools", END: END})
    graph.add_edge("tools", "model")
    task = [(fields["role"], fields["content"]) for fields in read_task()]
    result = graph.compile().invoke({"messages": task})
    print(result["messages"][-1].content)


main()
