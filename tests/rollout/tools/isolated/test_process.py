"""Isolated tools: whatever happens to their process costs one call."""

import asyncio
import functools
import os
import time
import traceback

import pytest

from holdfast.records.errors import EnvironmentBroken, ToolSaysNo, UsageError
from holdfast.rollout.tools.isolated import pool
from holdfast.rollout.tools.tool import Tool, tool
from support.rollout import dangerous_tools as tools
from support.rollout.isolated_pools import end_all
from support.rollout.stage import TrajectoryUnderTest, call


@pytest.fixture(autouse=True, scope="module")
def _no_process_is_left():
    yield
    end_all()


@pytest.fixture
def _fresh():
    """No process is there yet; none stays that was kept by other rules."""
    end_all()
    yield
    end_all()


fresh = pytest.mark.usefixtures("_fresh")


def invoke(item: Tool, **arguments: object):
    return asyncio.run(item.invoke(arguments))


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def pids_in(path) -> list[int]:
    wait_until(path.exists)
    return [int(word) for word in path.read_text().split()]


# --- what works


def test_the_function_runs_in_another_process_that_is_kept_for_the_next_call():
    first, second = invoke(tools.where), invoke(tools.where)
    assert first == second
    pid, loaded, _ = first.split(" ")
    assert int(pid) != os.getpid()
    assert int(loaded) != tools.loaded
    assert invoke(tools.later) == pid


def test_arguments_arrive_as_their_types_and_defaults_are_the_functions_own():
    bound = tools.typed.bind('{"at": {"x": 1}, "when": "2026-01-02T03:04:05Z"}')
    assert invoke(tools.typed, **bound) == "Point 1 0 2026 7"


def test_the_key_reaches_the_function():
    reply = asyncio.run(TrajectoryUnderTest().perform(lambda t: t.tool(call("where"), tools.where)))
    assert len(reply.content.split()[-1]) == 32


def test_a_function_that_is_a_tool_under_another_name_is_found():
    assert invoke(tools.plain_tool, a=1) == "2"
    assert tools.plain_tool(1) == 2


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        ("ten megabytes", "x" * 50_000 + "\n… 9,900,000 characters left out …\n" + "x" * 50_000),
        ("bytes", "\ufffd raw"),
        ("surrogate", "half \\ud800"),
        ("nan", "[NaN]"),
        ("object", '{"a":{"x":1,"y":0}}'),
    ],
    ids=lambda value: value[:16],
)
def test_results_are_shown_as_those_of_any_tool(kind, shown):
    result = invoke(tools.returns, kind=kind)
    assert tools.returns.render_result(result) == shown
    assert tools.returns.render_result(tools.returns(kind=kind)) == shown


@fresh
def test_what_a_tool_prints_does_not_disturb_the_conversation(capfd):
    assert invoke(tools.noise) == "quiet"
    out, err = capfd.readouterr()
    assert out.endswith("to stdout\n")
    assert "to stderr" in err


@fresh
async def test_calls_at_the_same_time_have_processes_of_their_own_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(pool, "PROCESSES", 2)
    results = await asyncio.gather(*(tools.later.invoke({"seconds": 0.1}) for _ in range(6)))
    assert len(results) == 6
    assert len(set(results)) == 2


# --- what the tool says


@pytest.mark.parametrize(
    ("custom", "kind", "message"),
    [(False, "ToolSaysNo", "not today"), (True, "OutOfStock", "none left \\ud800")],
)
def test_a_refusal_arrives_as_one_under_its_own_name(custom, kind, message):
    wanted = call("says_no", f'{{"custom": {str(custom).lower()}}}')
    reply = asyncio.run(TrajectoryUnderTest().perform(lambda t: t.tool(wanted, tools.says_no)))
    assert (reply.content, reply.error) == (message, kind)
    with pytest.raises(ToolSaysNo):
        invoke(tools.says_no, custom=custom)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("key", r"KeyError: .the tool's own"),
        ("exit", r"ExitCalled: .*SystemExit\(3\)"),
        ("interrupt", r"ExitCalled: .*KeyboardInterrupt"),
        ("unreadable", "Unprintable: Unreadable"),
        ("long", r"ValueError: x+\s… 990,000 characters left out"),
    ],
)
def test_an_exception_arrives_with_its_traceback_and_the_process_stays(kind, message):
    before = invoke(tools.where)
    with pytest.raises(EnvironmentBroken, match=message) as caught:
        invoke(tools.breaks, kind=kind)
    shown = "".join(traceback.format_exception(caught.value))
    assert 'dangerous_tools.py", line' in shown
    assert "in breaks" in shown
    assert invoke(tools.where) == before


def test_a_result_beyond_the_limit_is_an_accident():
    with pytest.raises(EnvironmentBroken, match="67,108,865 bytes; the limit is 67,108,864"):
        invoke(tools.returns, kind="too much")


# --- what happens to the process


@pytest.mark.parametrize(
    ("item", "arguments", "command"),
    [
        (tools.segfault, {}, "ended by SIGSEGV"),
        (tools.kill_itself, {}, r"ended by SIGKILL \(out of memory, or"),
        (tools.leave, {"code": 3}, "ended itself with exit code 3"),
        (tools.leave, {"code": 0}, "ended itself with exit code 0"),
        (tools.hang_up, {}, "closed its connection"),
        (tools.garbage, {}, "what is not an answer"),
    ],
    ids=["segfault", "kill", "exit 3", "exit 0", "hang up", "garbage"],
)
def test_a_tool_that_takes_its_process_down_costs_one_call(monkeypatch, item, arguments, command):
    monkeypatch.setattr("holdfast.rollout.tools.isolated.process.EXIT_SECONDS", 0.2)
    first = invoke(tools.where)
    with pytest.raises(EnvironmentBroken, match=command):
        invoke(item, **arguments)
    assert not is_alive(int(first.split()[0]))
    assert invoke(tools.where) != first


def test_a_crash_says_in_which_line_it_happened():
    with pytest.raises(EnvironmentBroken) as caught:
        invoke(tools.segfault)
    shown = "".join(traceback.format_exception(caught.value))
    assert "Segmentation fault" in shown
    assert "in segfault" in shown


def test_a_death_is_noticed_even_if_a_child_holds_the_connection(tmp_path):
    file = tmp_path / "pid"
    with pytest.raises(EnvironmentBroken, match="exit code 5"):
        invoke(tools.leave_a_child_behind, file=str(file))
    wait_until(lambda: not is_alive(pids_in(file)[0]))


def test_a_call_that_hangs_is_killed_at_its_deadline_with_all_that_it_started(tmp_path):
    file = tmp_path / "pids"
    invoke(tools.where)
    with pytest.raises(EnvironmentBroken, match=r"did not end within 4.5 s"):
        invoke(tools.hang, file=str(file))
    for pid in pids_in(file):
        wait_until(functools.partial(lambda pid: not is_alive(pid), pid))


def test_a_call_that_is_cancelled_is_killed_with_all_that_it_started(tmp_path):
    file = tmp_path / "pids"

    async def main():
        task = asyncio.create_task(tools.patient_hang.invoke({"file": str(file)}))
        while not file.exists():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    for pid in pids_in(file):
        wait_until(functools.partial(lambda pid: not is_alive(pid), pid))
    assert invoke(tools.plain_tool, a=1) == "2"


@fresh
async def test_a_call_that_is_cancelled_while_it_waits_for_a_process_never_runs(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(pool, "PROCESSES", 1)
    file, end = tmp_path / "pids", tmp_path / "end"

    def calls() -> int:
        tasks = asyncio.all_tasks(pool._offices[-1].loop())
        return sum("Pool.run" in repr(task) for task in tasks)

    running = asyncio.create_task(tools.until.invoke({"path": str(end)}))
    while calls() < 1:
        await asyncio.sleep(0.01)
    waiting = asyncio.create_task(tools.patient_hang.invoke({"file": str(file)}))
    while calls() < 2:
        await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert calls() == 1
    assert not running.done()
    end.touch()
    pid = await running
    assert (await tools.later.invoke({})) == pid
    assert not file.exists()


@fresh
async def test_the_deadline_counts_from_when_the_process_is_free(monkeypatch, tmp_path):
    monkeypatch.setattr(pool, "PROCESSES", 1)
    short = tool(isolated=True, name="later", timeout=3)(tools.later.function)
    assert short.caller_timeout is None
    assert tool(tools.plain).caller_timeout == 600.0
    begun, end = tmp_path / "begun", tmp_path / "end"
    running = asyncio.create_task(tools.until.invoke({"path": str(end), "begun": str(begun)}))
    while not begun.exists():
        await asyncio.sleep(0.01)
    waiting = asyncio.create_task(short.invoke({}))
    await asyncio.sleep(3.3)
    assert not waiting.done()
    end.touch()
    assert len(set(await asyncio.gather(running, waiting))) == 1


# --- how processes are kept


@fresh
def test_a_process_is_replaced_after_enough_calls(monkeypatch):
    monkeypatch.setattr(pool, "MAX_CALLS", 2)
    first, second, third = (invoke(tools.where) for _ in range(3))
    assert first == second != third
    wait_until(lambda: not is_alive(int(first.split()[0])))


@fresh
def test_a_process_without_work_is_ended_after_a_while(monkeypatch):
    monkeypatch.setattr(pool, "IDLE_SECONDS", 0.1)
    pid = int(invoke(tools.where).split()[0])
    wait_until(lambda: not is_alive(pid))
    assert invoke(tools.plain_tool, a=1) == "2"


def test_a_process_that_died_without_work_is_replaced():
    first = invoke(tools.where)
    os.kill(int(first.split()[0]), 9)
    wait_until(lambda: not is_alive(int(first.split()[0])))
    assert invoke(tools.where) != first


@fresh
def test_closing_ends_all_processes_and_leaves_no_zombies():
    pid = int(invoke(tools.where).split()[0])
    pool._offices[-1].close()
    assert not os.path.exists(f"/proc/{pid}")


# --- what is refused


class Archive:
    def search(self) -> None: ...


def test_only_functions_that_another_process_can_import_are_taken():
    def inner() -> None: ...

    for bad in (inner, lambda: 1, Archive().search, functools.partial(tools.plain, a=1), print):
        with pytest.raises(UsageError, match=r"top level of a module|wrap it|cannot be"):
            Tool(bad, name="bad", isolated=True)


def test_a_function_that_is_in_no_file_is_refused():
    space: dict = {"__name__": "nowhere"}
    exec("def lost() -> None: ...", space)
    with pytest.raises(UsageError, match="in no file"):
        Tool(space["lost"], isolated=True)
