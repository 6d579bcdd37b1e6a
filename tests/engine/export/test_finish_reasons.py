"""Why a reply ended is the same word everywhere: rollout, scorer, rows, trajectories, agents."""

import asyncio
import json
from pathlib import Path

import pytest

import holdfast
from holdfast.cli.main import main
from holdfast.testing import FakeEngine
from support.gateway.libraries import engine_behind, openai_client

CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}


@holdfast.tool
def add(a: int) -> int:
    return a


def exported(journal: Path, what: str) -> dict:
    file = journal.with_name(f"{what}.jsonl")
    command = ["export", "run", "--journal", str(journal), "--what", what, "--out", str(file)]
    assert main(command) == 0
    return json.loads(file.read_text())


@pytest.mark.parametrize(("dialect", "message"), [("chat", "tool_calls"), ("vllm", "stop")])
def test_a_reply_that_calls_tools_ended_with_tool_calls(dialect, message, tmp_path):
    """Whether the engine parses the call and says so, or gives tokens and says `stop`."""
    seen = {}

    async def rollout(t):
        t.add(*t.task.messages)
        seen["reply"] = (await t.generate(tools=[add])).finish_reason

    def score(trajectory):
        (turn,) = trajectory.turns
        seen["scorer"] = turn.step.finish_reason
        seen["engine"] = turn.step.engine_finish_reason
        return 1.0

    journal = tmp_path / "j.db"
    with FakeEngine(dialect=dialect, replies=(CALL,)) as engine:
        holdfast.run_sync(
            rollout,
            tasks=[{"prompt": "q"}],
            policy=engine.url,
            journal=journal,
            name="run",
            scorer=score,
        )
    row, trajectory = exported(journal, "rows"), exported(journal, "trajectories")
    seen["row"] = row["execution_metadata"]["finish_reason"]
    seen["samples"] = row["execution_metadata"]["extra"]["finish_reasons"]
    seen["trajectory"] = trajectory["turns"][0]["finish_reason"]
    assert seen == {
        "reply": "tool_calls",
        "scorer": "tool_calls",
        "engine": message,
        "row": "tool_calls",
        "samples": ["tool_calls"],
        "trajectory": "tool_calls",
    }


@pytest.mark.parametrize("dialect", ["chat", "vllm"])
def test_an_agent_is_told_the_same(dialect):
    async def ask():
        async with (
            engine_behind(dialect, replies=(CALL,)) as (_, _, binding),
            openai_client(binding) as client,
        ):
            hello = [{"role": "user", "content": "hi"}]
            made = await client.chat.completions.create(model="m", messages=hello, tools=[TOOL])
            return made.choices[0].finish_reason

    assert asyncio.run(ask()) == "tool_calls"
