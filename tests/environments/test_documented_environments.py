"""The environments that the pages show, as a reader would copy them."""

import asyncio
import re
import sys
from collections.abc import Callable

import pytest

import holdfast
from holdfast.environments import McpServer
from holdfast.testing import FakeEngine
from support.engine.local_run import LocalRun
from support.environments.gym_games import last_seen
from support.paths import DOCS
from support.rollout.stage import Oracle


def example(page: str, marks: str) -> str:
    """The one block of Python on a page that contains `marks`."""
    blocks = re.findall(
        r"^```python\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL
    )
    (result,) = [block for block in blocks if marks in block]
    return result


def names_of(*blocks: str) -> dict[str, object]:
    names: dict[str, object] = {"__name__": "documented"}
    for block in blocks:
        exec(block, names)
    return names


def played(processor: object, answer: Callable[[str], str]) -> tuple[str, float]:
    """Plays with a policy that is shown the last message; its status and reward."""
    local = LocalRun(policy=Oracle(lambda request: answer(last_seen(request))))
    local.run(processor)
    history = local.history()
    assert history.failures == []
    return history.status.name, history.finished.reward


def fewer(seen: str) -> str:
    left = int(re.match(r"\d+", seen)[0])
    return str(left % 4 or 1)


def test_the_countdown_can_be_won_and_lost():
    play = names_of(example("environments.md", "class Countdown"))["play"]
    assert played(play, fewer) == ("COMPLETED", 1.0)
    assert played(play, lambda seen: "3" if seen[:2] != "1 " else "2") == ("COMPLETED", 0.0)


def test_the_long_countdown_goes_on_from_its_snapshot():
    page = "environments.md"
    names = names_of(example(page, "class Countdown"), example(page, "class LongCountdown"))
    first, two = names["LongCountdown"](), names["LongCountdown"]()
    first.reset(seed=1)
    first.step("2")
    two.restore(first.snapshot())
    assert first.step("3") == two.step("3")


def call(name: str, number: int) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {{"number": {number}}}}}</tool_call>'


def test_the_vault_rewards_whoever_finds_the_code_and_ends():
    crack = names_of(example("environments.md", "class Vault"))["crack"]
    low, high = 0, 99

    def halve(seen: str) -> str:
        nonlocal low, high
        middle = (low + high) // 2
        if seen in ("larger", "not larger"):
            low, high = (middle + 1, high) if seen == "larger" else (low, middle)
            middle = (low + high) // 2
        return call("compare", middle) if low < high else call("open", low)

    assert played(crack, halve) == ("COMPLETED", 1.0)
    assert played(crack, lambda seen: call("open", -1)) == ("TRUNCATED", 0.0)
    assert played(crack, lambda seen: "I give up.") == ("COMPLETED", 0.0)


def test_the_notebook_server_keeps_notes(tmp_path):
    (tmp_path / "notes.py").write_text(example("mcp.md", "# notes.py"))
    notes = McpServer.stdio(sys.executable, str(tmp_path / "notes.py"), recovery="replay")
    results = []

    async def rollout(t) -> None:
        episode = await t.env(notes.environment())
        results.append(episode.observation.info["instructions"])
        add, show = episode.tools
        for wanted in (add.call(text="buy rope"), add.call(text="sell kelp"), show.call()):
            results.append((await t.tool(wanted, *episode.tools)).content)

    LocalRun().run(rollout)
    assert results == ["Keep notes.", "1 notes", "2 notes", "buy rope\nsell kelp"]


@pytest.fixture
def scripted():
    with names_of(example("testing.md", "@0 <tool_call>"))["engine"] as engine:
        assert isinstance(engine, FakeEngine)
        yield engine


def test_the_fake_engine_says_what_its_templates_say(scripted):
    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    messages = []

    async def solve(t) -> None:
        t.add("What is it?")
        first = await t.generate(tools=[add])
        await t.tools(first.tool_calls, add)
        second, third = await t.generate(tools=[add]), await t.generate(tools=[add])
        messages.append((t.messages[2].text, second.text, third.text))

    async def run() -> None:
        policy = holdfast.EnginePolicy(scripted.url, scripted.model)
        try:
            await holdfast.run(
                solve, tasks=[{"prompt": "x"}], samples=8, seed=1, name="test", policy=policy,
                journal=holdfast.open_journal("memory:"),
            )  # fmt: skip
        finally:
            await policy.aclose()

    asyncio.run(run())
    sums, seconds, thirds = zip(*messages, strict=True)
    assert all(1 <= int(number) <= 100 for number in sums)
    assert len(set(sums)) > 1
    kinds = {re.sub(r"\d+", "{n}", text) for text in seconds}
    assert kinds == {"It is {n}.", "I do not know."}
    assert all(re.fullmatch("[a-z ]*", text) for text in thirds)
