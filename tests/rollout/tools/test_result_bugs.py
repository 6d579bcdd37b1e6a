"""A bug in a tool is a bug: told as one, and never trained on."""

import asyncio
import json
import threading

import pytest

from holdfast.engine.export.export import What
from holdfast.records.errors import EnvironmentBroken, ThreadsHang
from holdfast.records.group import GroupPolicy
from holdfast.records.step import Contract
from holdfast.records.trajectory import Status
from holdfast.rollout.threads import pool
from holdfast.rollout.tools.result import RaisedElsewhere, is_bug
from holdfast.rollout.tools.tool import Tool
from support.engine.local_run import LocalRun
from support.rollout.stage import call


class Calls:
    """A tool that raises these, one by one, and then works."""

    def __init__(self, *errors: Exception):
        self.errors = list(errors)
        self.count = 0

    def tool(self, contract: Contract) -> Tool:
        def use() -> str:
            self.count += 1
            if self.errors:
                raise self.errors.pop(0)
            return "done"

        return Tool(use, contract=contract)


def solved_with(tool: Tool):
    async def solve(t):
        t.add(*t.task.messages)
        await t.generate()
        await t.tool(call("use"), tool)
        return 1.0

    return solve


def run(calls: Calls, contract: Contract) -> LocalRun:
    local = LocalRun(group=GroupPolicy(refill=2))
    local.run(solved_with(calls.tool(contract)), max_retry=3)
    return local


@pytest.mark.parametrize("contract", list(Contract))
def test_a_bug_in_a_tool_is_called_once_more_to_tell_it_from_a_flake_and_no_model_is_told(contract):
    calls = Calls(*[ZeroDivisionError("a/0")] * 9)
    local = run(calls, contract)
    history = local.history()
    assert (history.status, calls.count) == (Status.FAILED, 2)
    assert history.life == 0, "a new life would only look for a way around it"
    assert not history.interrupted_calls
    assert [failure.cause for failure in history.failures] == ["code"] * 2
    failure = history.failures[-1]
    assert failure.line == "ToolBug: tool use broke: ZeroDivisionError: a/0"
    assert "in use\n" in failure.traceback
    assert local.rows(What.SAMPLES) == []


@pytest.mark.parametrize("contract", list(Contract))
def test_a_flake_that_looks_like_a_bug_costs_one_attempt(contract):
    calls = Calls(KeyError("x"))
    history = run(calls, contract).history()
    assert (history.status, calls.count) == (Status.COMPLETED, 2)


class TheirError(ValueError):
    pass


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TypeError("x"), True),
        (IndexError("x"), True),
        (ModuleNotFoundError("x"), True),
        (NotImplementedError("x"), True),
        (ValueError("x"), True),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"), False),
        (json.JSONDecodeError("x", "x", 0), False),
        (TheirError("x"), False),
        (RuntimeError("x"), False),
        (OSError("x"), False),
        (MemoryError("x"), False),
        (TimeoutError("x"), False),
        (EnvironmentBroken("x"), False),
        (RaisedElsewhere("ZeroDivisionError", "x"), True),
        (RaisedElsewhere("BrokenPipeError", "x"), False),
        (RaisedElsewhere("TheirError", "x"), False),
        (RaisedElsewhere("print", "x"), False),
    ],
    ids=repr,
)
def test_only_pythons_own_errors_for_mistakes_are_bugs(error, expected):
    assert is_bug(error) is expected


def test_a_tool_of_which_too_many_calls_hang_stops_the_run_and_fails_nobody_else(monkeypatch):
    monkeypatch.setattr(pool, "MAX_ABANDONED", 3)
    monkeypatch.setattr(pool, "HANGING_SECONDS", 0.2)
    release = threading.Event()

    def look(number: int) -> str:
        if number < 3:
            release.wait(600)
        return "seen"

    tool = Tool(look, timeout=0.1, contract="at_most_once")

    async def solve(t):
        t.add("go")
        await t.generate()
        await t.tool(tool.call(number=int(t.task.id)), tool)

    local = LocalRun(*map(str, range(12)), group=GroupPolicy(refill=0))
    try:
        ending = local.run(solve, concurrency=1, max_retry=0)
    finally:
        release.set()
    assert isinstance(ending.fatal, ThreadsHang)
    assert [name for name, (status, _) in local.statuses().items() if status == "FAILED"] == [
        "0/0",
        "1/0",
        "2/0",
    ]
    local.run(solve, concurrency=1, max_retry=0)
    assert local.report().by_status == {"COMPLETED": 9, "FAILED": 3}


def test_calls_that_are_late_together_are_waited_for(monkeypatch):
    monkeypatch.setattr(pool, "MAX_ABANDONED", 3)
    release, late = threading.Event(), []

    def look(number: int) -> str:
        if number < 3:
            late.append(number)
            release.wait(600)
        return "seen"

    tool = Tool(look, timeout=0.1, contract="at_most_once")

    async def solve(t):
        t.add("go")
        await t.generate()
        if t.task.id == "3":
            while len(late) < 3:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)
            asyncio.get_running_loop().call_later(0.3, release.set)
        await t.tool(tool.call(number=int(t.task.id)), tool)

    local = LocalRun(*map(str, range(4)), group=GroupPolicy(refill=0))
    ending = local.run(solve, max_retry=0)
    assert ending.fatal is None
    assert local.report().by_status == {"COMPLETED": 1, "FAILED": 3}
