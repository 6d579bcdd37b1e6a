"""Agents that are programs, whose tools are the gateway's; and rewards that nobody posted."""

import sys

import pytest

import holdfast
from holdfast.engine.export.export import What
from holdfast.environments import Workspace
from holdfast.gateway.agents.subprocess import BlackBoxRolloutProcessor
from support.engine.local_run import LocalRun
from support.paths import AGENT_PROGRAMS
from support.rollout.stage import Oracle

CALL = '<tool_call>{{"name": "{}", "arguments": {}}}</tool_call>'


def turn_of(request) -> int:
    return bytes(token for token in request.prompt if token < 256).count(b"assistant\n")


def agent(*args: str, **options) -> BlackBoxRolloutProcessor:
    command = [sys.executable, str(AGENT_PROGRAMS / "tools_loop.py"), *args]
    return BlackBoxRolloutProcessor(command, **options)


class Till:
    """A tool of each contract, and what they did. Each is asked for twice with the same words."""

    def __init__(self) -> None:
        self.did: list[str] = []

    def reply(self, request) -> str:
        turn = turn_of(request) - 1
        return CALL.format(("read", "pay")[turn % 2], '{"what": 1}') if turn < 4 else "done"

    @property
    def tools(self):
        async def read(what: int, idempotency_key: str) -> str:
            """Reads."""
            self.did.append(f"read {idempotency_key}")
            return f"read {what}"

        async def pay(what: int) -> str:
            """Pays."""
            self.did.append("pay")
            return f"paid {self.did.count('pay')}"

        return [
            holdfast.Tool(read, contract="idempotent"),
            holdfast.Tool(pay, contract="at_most_once"),
        ]


@pytest.mark.parametrize("how", [(), ("--ids",)], ids=["by-content", "by-id"])
@pytest.mark.parametrize("phase", ["before", "tool", "told"])
def test_an_agent_that_is_killed_calls_again_and_nothing_happens_twice(tmp_path, how, phase):
    till = Till()
    local = LocalRun(policy=Oracle(till.reply))
    env = {"CRASH_AT": "1,3", "CRASH_ONCE": str(tmp_path / "crashed"), "CRASH_PHASE": phase}
    local.run(agent(*how, tools=till.tools, env=env))
    history = local.history()
    assert history.status.name == "COMPLETED", history.failures
    assert len(history.failures) == 2
    assert not history.forks
    assert len(local.policy.requests) == 5
    assert [item.split()[0] for item in till.did] == ["read", "pay", "read", "pay"]
    assert len(set(till.did)) == 3, "each call has its own idempotency key"
    (exported,) = local.rows(What.TRAJECTORIES)
    uses = [(tool["name"], tool["content"]) for tool in exported["tools"]]
    assert uses == [("read", "read 1"), ("pay", "paid 1"), ("read", "read 1"), ("pay", "paid 2")]
    order = [type(item).__name__ for item in history.in_order]
    assert order == [*["Generated", "ToolIntent"] * 4, "Generated"]


def test_a_tool_that_breaks_costs_an_attempt_and_its_cause_is_the_environment():
    broken = []

    @holdfast.tool(contract="idempotent")
    def read(what: int) -> str:
        """Reads."""
        if not broken:
            broken.append(what)
            raise OSError("the disk is gone")
        return "read"

    local = LocalRun(
        policy=Oracle(lambda r: CALL.format("read", '{"what": 1}') if turn_of(r) == 1 else "x")
    )
    local.run(agent(tools=[read]))
    history = local.history()
    assert history.status.name == "COMPLETED", history.failures
    assert [(failure.cause, failure.type) for failure in history.failures] == [
        ("environment", "EnvironmentBroken")
    ]
    assert "the disk is gone" in history.failures[0].message
    assert len(history.generations) == 2


def test_a_call_that_broke_has_ended_and_is_made_again_also_under_the_restart_contract():
    did = []

    @holdfast.tool(contract="restart")
    def build(what: int) -> str:
        """Builds."""
        did.append(what)
        if len(did) == 2:
            raise OSError("it fell down")
        return f"{len(did)} built"

    local = LocalRun(
        policy=Oracle(lambda r: CALL.format("build", '{"what": 1}') if turn_of(r) < 3 else "x")
    )
    local.run(agent(tools=[build]))
    history = local.history()
    assert history.status.name == "COMPLETED", history.failures
    assert len(did) == 3
    assert not history.forks
    assert len(local.policy.requests) == 3
    (exported,) = local.rows(What.TRAJECTORIES)
    assert [tool["content"] for tool in exported["tools"]] == ["1 built", "3 built"]


def test_an_environments_tools_come_back_with_their_world(tmp_path):
    message = [
        CALL.format("write_file", '{"path": "a", "content": "one"}'),
        CALL.format("shell", '{"command": "cat a >> b; cat b"}'),
        CALL.format("shell", '{"command": "cat a >> b; cat b"}'),
        "done",
    ]

    async def counted(t, episodes):
        action = episodes[0].environment.scoring('test "$(cat b)" = oneone', keep=["b"])
        return (await episodes[0].step(action)).reward

    local = LocalRun(policy=Oracle(lambda request: message[turn_of(request) - 1]))
    env = {"CRASH_AT": "2", "CRASH_ONCE": str(tmp_path / "crashed"), "CRASH_PHASE": "after"}
    local.run(agent(environments=[lambda task: Workspace()], env=env, finish=counted))
    history = local.history()
    assert history.status.name == "COMPLETED", history.failures
    assert len(history.failures) == 1
    assert not history.forks
    assert len(local.policy.requests) == 4
    assert history.reward == 1.0
    (exported,) = local.rows(What.TRAJECTORIES)
    assert [tool["content"].split("\n")[0] for tool in exported["tools"]] == [
        "wrote 3 bytes to a",
        "one",
        "oneone",
    ]


# --- rewards


def complete(reward: str) -> list[str]:
    """A program that asks once, says that it is done, and ends."""
    code = (
        "import json, os, urllib.request\n"
        "def post(path, body):\n"
        "    url = os.environ['HOLDFAST_URL'] + path\n"
        "    sent = urllib.request.Request(url, json.dumps(body).encode(), {'Content-Type': "
        "'application/json'})\n"
        "    return urllib.request.urlopen(sent).read()\n"
        "post('/v1/chat/completions', {'model': 'm',"
        " 'messages': [{'role': 'user', 'content': 'hello'}]})\n"
        f"post('/complete', {reward})\n"
    )
    return [sys.executable, "-c", code]


def letters(trajectory: holdfast.TrajectoryView) -> float:
    return float(len(trajectory.reply))


def test_an_agent_that_names_no_reward_gets_the_one_that_the_scorer_computes():
    local = LocalRun("a", "b", policy=Oracle(lambda request: "four"))
    local.run(BlackBoxRolloutProcessor(complete("{}")), letters)
    for name in ("a/0", "b/0"):
        history = local.history(name)
        assert (history.status.name, history.finished.reward) == ("COMPLETED", None)
        assert (history.scored.reward, history.reward) == (4.0, 4.0)
    assert [row["reward"] for row in local.rows()] == [4.0, 4.0]


def test_an_agents_own_reward_stands_where_nothing_scores():
    local = LocalRun()
    local.run(BlackBoxRolloutProcessor(complete("{'reward': 0.25}")))
    assert local.history().reward == 0.25


def test_what_finish_returns_counts_before_what_the_agent_says_of_itself():
    async def strict(t, episodes):
        assert not episodes
        return -1.0

    local = LocalRun()
    local.run(BlackBoxRolloutProcessor(complete("{'reward': 0.25}"), finish=strict))
    assert local.history().reward == -1.0
