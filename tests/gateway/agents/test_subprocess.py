"""Agents that are programs: recorded, started again, and given back their past."""

import asyncio
import sys
from pathlib import Path

import aiohttp
import pytest

from holdfast.gateway.agents.subprocess import BlackBoxRolloutProcessor
from holdfast.records.errors import ContextOverflow, EndpointDown, EngineUnavailable, UsageError
from support.engine.local_run import LocalRun
from support.paths import AGENT_PROGRAMS
from support.rollout.stage import Oracle

CALL = '<tool_call>{{"name": "add", "arguments": {{"a": {}, "b": 2}}}}</tool_call>'


class Adding:
    """Asks for the tool three times, and is then done; `fails_at` is an accident."""

    def __init__(self, fails_at: int = -1):
        self.calls, self.fails_at = 0, fails_at

    def __call__(self, request):
        self.calls += 1
        if self.calls - 1 == self.fails_at:
            return EngineUnavailable("gone")
        turn = bytes(token for token in request.prompt if token < 256).count(b"assistant\n")
        return "that is all" if turn > 3 else CALL.format(turn)


def agent(name: str, *args: str, **env: str) -> BlackBoxRolloutProcessor:
    return BlackBoxRolloutProcessor(
        [sys.executable, str(AGENT_PROGRAMS / f"{name}.py"), *args], env=env
    )


@pytest.mark.parametrize("how", [(), ("--stream",)], ids=["json", "stream"])
def test_an_agent_on_the_openai_library_gives_one_token_exact_sample(how):
    local = LocalRun(policy=Oracle(Adding()))
    local.run(agent("openai_loop", *how))
    history = local.history()
    assert history.status.name == "COMPLETED", history.failures
    assert len(history.generations) == 4
    assert history.prefix_breaks == 0
    (sample,) = local.rows()
    assert sum(sample["loss_mask"]) == history.sampled_tokens


@pytest.mark.parametrize("how", [(), ("--stream",)], ids=["json", "stream"])
@pytest.mark.parametrize("calls", range(5))
def test_an_agent_that_is_killed_is_started_again_and_samples_nothing_twice(tmp_path, how, calls):
    local = LocalRun(policy=Oracle(Adding()))
    crash = {"CRASH_AT": str(calls), "CRASH_ONCE": str(tmp_path / "crashed")}
    # Without a library: what is killed and started again is a process, and a cheap one will do.
    local.run(agent("curl_loop", "--urllib", *how, **crash))
    history = local.history()
    assert history.status.name == "COMPLETED", history.failures
    assert (tmp_path / "crashed").exists() == (calls < 4)
    assert len(local.policy.requests) == 4
    assert len(history.generations) == 4
    assert not history.forks


def test_an_engine_that_fails_costs_an_attempt_and_no_call_that_was_answered():
    adding = Adding(fails_at=2)
    local = LocalRun(policy=Oracle(adding))
    local.run(agent("openai_loop"))
    history = local.history()
    assert history.status.name == "COMPLETED", history.failures
    assert [failure.cause for failure in history.failures] == ["infrastructure"]
    assert adding.calls == 5
    assert len(history.generations) == 4


def test_an_agent_that_is_ended_slowly_is_ended_before_a_run_that_stops():
    ends = []

    async def slow_to_end(binding, task):
        try:
            async with aiohttp.ClientSession() as http:
                body = {"model": "m", "messages": [{"role": "user", "content": task.id}]}
                await http.post(f"{binding.bound_url}/v1/chat/completions", json=body)
            await asyncio.sleep(1_000)
        finally:
            await asyncio.sleep(0.5 if task.id == "b" else 0)
            ends.append(task.id)

    local = LocalRun("a", "b", policy=Oracle(lambda request: EndpointDown("gone for good")))
    ending = local.run(BlackBoxRolloutProcessor(slow_to_end))
    assert ending.stopped
    assert ends == ["a", "b"]


def test_a_full_context_is_the_policys_limit_and_not_the_agents_failure():
    local = LocalRun(policy=Oracle(lambda request: ContextOverflow("too long")))
    local.run(agent("openai_loop"))
    history = local.history()
    assert (history.status.name, history.finished.reason) == ("TRUNCATED", "context_overflow")


def test_an_agent_that_fails_is_a_failure_with_its_last_words():
    local = LocalRun()
    failing = [sys.executable, "-c", "import sys; sys.exit('I give up')"]
    local.run(BlackBoxRolloutProcessor(failing), max_retry=1)
    history = local.history()
    assert history.status.name == "FAILED"
    assert history.reward is None
    assert "exit code 1: I give up" in history.failures[-1].message
    assert history.failures[-1].cause == "code"


def test_the_last_line_of_a_traceback_heads_the_failure():
    local = LocalRun()
    local.run(BlackBoxRolloutProcessor([sys.executable, "-c", "1 / 0"]), max_retry=0)
    first, *rest = local.history().failures[-1].message.splitlines()
    assert first == "the agent ended with exit code 1: ZeroDivisionError: division by zero"
    assert rest[0] == "Traceback (most recent call last):"


def test_an_agents_failure_is_told_in_its_own_words_and_not_in_our_lines():
    local = LocalRun()
    local.run(BlackBoxRolloutProcessor([sys.executable, "-c", "1 / 0"]), max_retry=0)
    failure = local.history().failures[-1]
    assert failure.traceback.startswith(
        "holdfast.gateway.protocol.messages.AgentFailed: the agent ended"
    )
    assert "black_box.py" not in failure.traceback


async def content(t, episodes):
    """Judges an agent that needs no model."""
    return 1.0


def test_an_agent_that_asks_nothing_and_tells_no_reward_is_a_failure_and_no_outcome():
    local = LocalRun()
    local.run(BlackBoxRolloutProcessor(["true"]), lambda view: 0.0, max_retry=1)
    history = local.history()
    assert (history.status.name, history.reward) == ("FAILED", None)
    assert "OPENAI_BASE_URL" in history.failures[-1].message


def test_what_an_agent_wrote_that_asked_nothing_is_kept():
    local = LocalRun()
    hiding = [sys.executable, "-c", "print('401: no such key')"]
    local.run(BlackBoxRolloutProcessor(hiding), max_retry=0)
    assert local.history().failures[-1].message.endswith("It wrote:\n401: no such key")


def test_an_agent_finds_its_task_where_the_logs_are_a_relative_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reads = "import os; print(len(open(os.environ['HOLDFAST_TASK']).read()) > 2)"
    local = LocalRun()
    local.run(BlackBoxRolloutProcessor([sys.executable, "-c", reads], logs="logs", finish=content))
    assert local.history().status.name == "COMPLETED", local.history().failures
    (out,) = (tmp_path / "logs").rglob("stdout")
    assert out.read_text() == "True\n"


@pytest.mark.parametrize(
    ("command", "options", "arguments"),
    [
        (["no-such-agent", "--x"], {}, "'no-such-agent' is not found on PATH"),
        (["./agent"], {}, "'./agent' is not found from"),
        (["./agent"], {"cwd": "there"}, "'./agent' is not found from"),
        (["python3", "agnt.py"], {}, "script 'agnt.py' is not found from"),
        (["python3", "-u", "agent.py"], {"cwd": "there"}, "script 'agent.py' is not found from"),
        (["sh"], {"cwd": "nowhere"}, "'nowhere' is not a folder"),
        (["sh"], {"env": {"PATH": "/nowhere"}}, "'sh' is not found on PATH"),
    ],
)
def test_a_program_that_is_not_there_is_said_before_the_first_trajectory(
    tmp_path, monkeypatch, command, options, arguments
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "agent.py").touch()
    local = LocalRun()
    with pytest.raises(UsageError, match=arguments):
        local.run(BlackBoxRolloutProcessor(command, **options))
    assert not local.history().failures


@pytest.mark.parametrize(
    "command",
    [
        ["python3", "agent.py", "other.py"],
        ["python3", "-u", "there/agent.py"],
        ["sh", "-c", "exec python3 made-later.py"],
        ["python3", "-m", "package.py"],
        ["env", "X=1", "python3", "made-later.py"],
    ],
)
def test_what_may_be_no_script_is_left_to_the_program(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "agent.py").touch()
    (tmp_path / "there" / "agent.py").touch()
    BlackBoxRolloutProcessor(command).check_setup()


def test_what_an_agent_leaves_running_is_ended_with_it(tmp_path):
    pid = tmp_path / "pid"
    code = (
        "import subprocess\n"
        "child = subprocess.Popen(['sleep', '1000'])\n"
        f"open({str(pid)!r}, 'w').write(str(child.pid))"
    )
    local = LocalRun()
    local.run(BlackBoxRolloutProcessor([sys.executable, "-c", code], finish=content))
    assert local.history().status.name == "COMPLETED"
    assert not is_running(int(pid.read_text()))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_callable_agent_returns_its_turns_and_its_reward():
    async def subject(binding, task):
        from openai import AsyncOpenAI

        async with AsyncOpenAI(base_url=f"{binding.url}/v1", api_key=binding.key) as client:
            messages = [{"role": "user", "content": "hello"}]
            await client.chat.completions.create(model="m", messages=messages)
        return 1, 0.5

    local = LocalRun()
    local.run(BlackBoxRolloutProcessor(subject))
    assert local.history().reward == 0.5
    assert local.history().finished.turns_used == 1


def test_a_key_of_an_attempt_that_is_over_is_refused():
    keys = []

    async def keep(binding, task):
        keys.append(binding)

    async def use(binding, task):
        import openai

        old = keys[0]
        async with openai.AsyncOpenAI(base_url=f"{binding.url}/v1", api_key=old.key) as client:
            with pytest.raises(openai.ConflictError, match="is over"):
                await client.with_options(max_retries=0).chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "x"}]
                )
        async with openai.AsyncOpenAI(base_url=f"{binding.url}/v1", api_key="hf-made-up") as client:
            with pytest.raises(openai.AuthenticationError):
                await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "x"}]
                )

    async def both(binding, task):
        await (use if keys else keep)(binding, task)
        return 1.0

    local = LocalRun("a", "b")
    local.run(BlackBoxRolloutProcessor(both), concurrency=1)
    assert {status for status, _ in local.statuses().values()} == {"COMPLETED"}, local.histories()


def test_a_command_is_a_list_of_words():
    with pytest.raises(UsageError, match="a list of words"):
        BlackBoxRolloutProcessor("python agent.py")
