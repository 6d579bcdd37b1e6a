"""MCP servers in real rollouts: what dies comes back by its recovery level."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.environments.mcp import McpServer
from holdfast.policy.policy import Request
from holdfast.records.errors import EnvironmentBroken
from holdfast.rollout.processors.agent import AgentRolloutProcessor
from support.engine.local_run import LocalRun
from support.environments.mcp_servers.keeping import ListeningBank, call, others, stdio
from support.rollout.stage import Oracle, TrajectoryUnderTest


async def ask(t, episode, name, /, **arguments) -> str:
    tool = next(tool for tool in episode.tools if tool.name == name)
    return (await t.tool(tool.call(**arguments), *episode.tools)).content


def banking(server: McpServer, flag: Path, results: list[list[str]]):
    """Deposits, has the server killed the first time, and looks at what is left."""

    async def rollout(t) -> None:
        await server.tools()
        episode = await t.env(server.environment())
        answers = [await ask(t, episode, "deposit", name="ann", amount=7)]
        t.add("go")
        await t.generate()
        answers.append(await ask(t, episode, "withdraw", name="ann", amount=9))
        answers.append(await ask(t, episode, "rob", flag=str(flag)))
        answers.append(await ask(t, episode, "deposit", name="ann", amount=1))
        results.append(answers)

    return rollout


BANK = stdio("bank", recovery="replay")


@pytest.fixture(scope="module")
def bank() -> Iterator[ListeningBank]:
    with ListeningBank() as listening:
        yield listening


@pytest.fixture
def flag(tmp_path) -> Path:
    return tmp_path / "robbed"


EXPECTED = [
    "ann has 7",
    "Error executing tool withdraw: ann has only 7",
    "the safe was empty",
    "ann has 8",
]


def test_a_server_with_state_that_dies_in_a_call_is_brought_back_by_replay(flag):
    results: list[list[str]] = []
    local = LocalRun()
    local.run(banking(BANK, flag, results))
    assert local.statuses() == {"a/0": ("COMPLETED", True)}
    assert results == [EXPECTED]
    assert len(local.history().attempts) == 2
    assert flag.exists()


def test_a_server_with_state_that_cannot_come_back_starts_the_trajectory_anew(flag):
    server, results = stdio("bare", recovery="restart"), []

    async def rollout(t) -> None:
        await server.tools()
        episode = await t.env(server.environment())
        answers = [await ask(t, episode, "add_one") for _ in range(2)]
        answers.append(await ask(t, episode, "kill_once", flag=str(flag)))
        results.append([*answers, await ask(t, episode, "add_one")])

    local = LocalRun()
    local.run(rollout)
    assert local.statuses() == {"a/0": ("COMPLETED", True)}
    assert results == [["1", "2", "survived", "3"]]


def test_over_http_a_server_that_was_killed_and_started_again_is_brought_back_by_replay(bank, flag):
    server, results = McpServer.http(bank.url, recovery="replay", timeout=60), []

    async def rollout(t) -> None:
        await server.tools()
        episode = await t.env(server.environment())
        results.append(await ask(t, episode, "deposit", name="ann", amount=7))
        if not flag.exists():
            flag.touch()
            bank.kill()
            bank.start()
        results.append(await ask(t, episode, "deposit", name="ann", amount=1))

    local = LocalRun()
    local.run(rollout)
    assert local.statuses() == {"a/0": ("COMPLETED", True)}
    assert results == ["ann has 7", "ann has 7", "ann has 8"]


async def test_trajectories_with_sessions_of_their_own_do_not_see_each_other_over_http(bank):
    server = McpServer.http(bank.url, recovery="replay", timeout=60)
    first, second = server.environment(), server.environment()
    await first.reset(seed=1)
    await second.reset(seed=1)
    message = [
        await call(first, "deposit", name="ann", amount=7),
        await call(second, "deposit", name="ann", amount=1),
        await call(first, "deposit", name="ann", amount=1),
    ]
    tool = next(tool for tool in first.tools if tool.name == "recite")
    assert await tool.invoke({"size": 10_000_000}) == "x" * 10_000_000
    await first.close()
    await second.close()
    assert not others()
    assert (message) == ["ann has 7", "ann has 1", "ann has 8"]


async def test_a_shared_server_that_dies_and_is_unreachable_for_a_while_is_found_again(bank, flag):
    async with McpServer.http(bank.url, shared=True, timeout=60) as server:
        environment = server.environment()
        await environment.reset(seed=1)
        assert await call(environment, "seed") == "none"
        with pytest.raises(EnvironmentBroken, match="was lost while it ran rob"):
            await call(environment, "rob", flag=str(flag))
        bank.kill()
        with pytest.raises(EnvironmentBroken, match=r"did not begin.*ConnectError"):
            await call(environment, "seed")
        bank.start()
        answer = await call(environment, "seed")
        await environment.close()
    assert not others()
    assert (answer) == "none"


async def test_a_resumed_trajectory_replays_without_the_server_and_goes_on_with_it(monkeypatch):
    subject, server, results = TrajectoryUnderTest(), stdio("bare", recovery="replay"), []

    async def refuse(seed: int | None = None) -> None:
        raise AssertionError("what is recorded is not asked for again")

    def counting(turns: int):
        async def rollout(t) -> None:
            await server.tools()
            episode = await t.env(server.environment())
            results.append([await ask(t, episode, "add_one") for _ in range(turns)])
            await episode.close()

        return rollout

    await subject.perform(counting(1))
    with monkeypatch.context() as without:
        without.setattr(server, "begin", refuse)
        await subject.perform(counting(1))
    await subject.perform(counting(3))
    assert not others()
    assert results == [["1"], ["1"], ["1", "2", "3"]]


@pytest.mark.parametrize("contract", [None, {"kill_once": "idempotent"}])
def test_a_call_in_which_the_server_died_is_made_again_under_any_contract(contract, flag):
    server, results = stdio("bare", contract=contract), []

    async def rollout(t) -> None:
        await server.tools()
        episode = await t.env(server.environment())
        results.append(await ask(t, episode, "kill_once", flag=str(flag)))

    local = LocalRun()
    local.run(rollout)
    assert local.statuses() == {"a/0": ("COMPLETED", True)}
    assert results == ["survived"]


def test_an_agent_has_the_tools_of_its_servers():
    count, rune = stdio("bare", recovery="replay"), stdio("bare", shared=True, prefix="other_")
    calls = ["add_one", "add_one", "other_rune", "no_such_tool"]

    class Agent(AgentRolloutProcessor):
        async def setup(self) -> None:
            await asyncio.gather(count.open(), rune.open())

        async def acleanup(self) -> None:
            await asyncio.gather(count.aclose(), rune.aclose())

    def answer(request: Request) -> str:
        turn = len(requests)
        requests.append(request)
        if turn >= len(calls):
            return "done"
        return f'<tool_call>{{"name": "{calls[turn]}", "arguments": {{}}}}</tool_call>'

    requests: list[Request] = []
    local = LocalRun(policy=Oracle(answer))
    local.run(
        Agent(environments=[lambda task: count.environment(), lambda task: rune.environment()])
    )
    assert local.statuses() == {"a/0": ("COMPLETED", True)}
    contents = [result.content for result in local.history().results.values()]
    assert contents[:3] == ["1", "2", "? \ufffd ?"]
    assert contents[3].startswith("there is no tool 'no_such_tool'; the tools are: add_one, hang")


def test_trajectories_that_share_a_server_all_end_well_though_one_of_them_kills_it(flag):
    server = stdio("bare", shared=True, contract="idempotent")
    names = [f"task{index}" for index in range(20)]

    answers_by_task: dict[str, list[str]] = {}

    async def rollout(t) -> None:
        await server.tools()
        episode = await t.env(server.environment())
        answers = [await ask(t, episode, "rune") for _ in range(3)]
        if t.task.id == "task5":
            answers.append(await ask(t, episode, "kill_once", flag=str(flag)))
        answers_by_task[t.task.id] = answers

    local = LocalRun(*names)
    local.run(rollout)
    assert local.statuses() == {f"{name}/0": ("COMPLETED", True) for name in names}
    assert answers_by_task.pop("task5") == ["? \ufffd ?"] * 3 + ["survived"]
    assert list(answers_by_task.values()) == [["? \ufffd ?"] * 3] * 19
