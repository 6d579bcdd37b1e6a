"""Coding agents from npm behind the gateway (`make agents`): unchanged, but for address and key.

The policy answers from a script: it asks for a file to be made with the agent's own shell tool,
and is then done. So each run proves the agent's wire, its tools and its history, both ways.
"""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import Struct

from holdfast.gateway.agents.subprocess import BlackBoxRolloutProcessor
from support.engine.local_run import LocalRun
from support.paths import AGENT_PROGRAMS
from support.rollout.stage import Oracle

FOLDER = os.environ.get("HOLDFAST_AGENTS_DIR", "")
pytestmark = pytest.mark.skipif(not FOLDER, reason="`make agents` installs them and runs this")

TASK = "make the file made.txt"
SHELL = "echo held > made.txt"
ASKS, DONE = "I make it.", "It is made."
LAUNCH = AGENT_PROGRAMS / "coding_agent.sh"

PROVIDER = '{name="holdfast",base_url="BASE",env_key="OPENAI_API_KEY",wire_api="responses"}'


class Coder(Struct, frozen=True):
    """How an agent is started, and how its model calls its shell."""

    command: tuple[str, ...]
    tool: str
    arguments: dict[str, object]
    ignore: tuple[str, ...] = ()


CODERS = {
    "claude": Coder(
        ("claude", "-p", TASK, "--model", "oracle", "--dangerously-skip-permissions"),
        "Bash",
        {"command": SHELL, "description": "makes it"},
    ),
    "codex": Coder(
        (
            *("codex", "exec", "--skip-git-repo-check"),
            "--dangerously-bypass-approvals-and-sandbox",
            # What its provider would run by itself is switched off: nobody runs it here.
            *("-c", 'web_search="disabled"', "--disable", "multi_agent"),
            *("-m", "oracle", "-c", 'model_provider="holdfast"'),
            *("-c", f"model_providers.holdfast={PROVIDER}", TASK),
        ),
        "exec_command",
        {"cmd": SHELL},
    ),
    "codex as it is": Coder(
        (
            *("codex", "exec", "--skip-git-repo-check"),
            "--dangerously-bypass-approvals-and-sandbox",
            *("-m", "oracle", "-c", 'model_provider="holdfast"'),
            *("-c", f"model_providers.holdfast={PROVIDER}", TASK),
        ),
        "exec_command",
        {"cmd": SHELL},
        # With all that its provider would run by itself.
        ("tool:*",),
    ),
    "qwen": Coder(
        ("qwen", "-p", TASK, "--yolo", "--auth-type", "openai", "--model", "oracle"),
        "run_shell_command",
        {"command": SHELL, "is_background": False},
    ),
    "opencode": Coder(
        ("opencode", "run", "--model", "holdfast/oracle", TASK),
        "bash",
        {"command": SHELL, "description": "makes it"},
    ),
}


@pytest.fixture(params=CODERS)
def coder(request) -> Coder:
    return CODERS[request.param]


def text(request) -> str:
    return bytes(token for token in request.prompt if token < 256).decode(errors="replace")


def scripted(coder: Coder, on_done: Callable[[], None] = lambda: None) -> Oracle:
    call = json.dumps({"name": coder.tool, "arguments": coder.arguments})

    def answer(request) -> str:
        if ASKS not in text(request):
            return f"{ASKS} <tool_call>{call}</tool_call>"
        on_done()
        return DONE

    return Oracle(answer)


def played(coder: Coder, tmp_path: Path, **options) -> LocalRun:
    work, home = tmp_path / "work", tmp_path / "home"
    for folder in (work, home):
        folder.mkdir(exist_ok=True)
    env = {
        "HOME": str(home),
        "PATH": f"{FOLDER}/node_modules/.bin:{os.environ['PATH']}",
        "IS_SANDBOX": "1",  # Claude Code, about running as root.
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "OPENAI_MODEL": "oracle",
        "ANTHROPIC_MODEL": "oracle",
        "ANTHROPIC_SMALL_FAST_MODEL": "oracle",
    }
    local = LocalRun(policy=scripted(coder, **options))
    agent = BlackBoxRolloutProcessor(
        [str(LAUNCH), *coder.command], env=env, cwd=work, silence=120, ignore=coder.ignore
    )
    local.run(agent)
    history = local.history()
    assert history.status.name == "COMPLETED", [failure.message for failure in history.failures]
    assert (work / "made.txt").read_text() == "held\n"
    assert history.generations[-1].message.text == DONE
    ignored = {item for called in history.calls.values() for item in called.ignored}
    assert bool(ignored) == bool(coder.ignore), ignored
    return local


def assert_token_exact(local: LocalRun) -> None:
    history = local.history()
    assert history.prefix_breaks == 0
    assert sum(sum(row["loss_mask"]) for row in local.rows()) == history.sampled_tokens


def test_a_coding_agent_does_its_work_and_every_token_is_trained_once(coder, tmp_path):
    local = played(coder, tmp_path)
    assert not local.history().failures
    assert_token_exact(local)


def test_a_coding_agent_that_is_killed_is_given_back_its_past(coder, tmp_path):
    killed: list[int] = []

    def kill_once() -> None:
        if not killed:
            killed.append(_agent_of_this_process())
            os.killpg(killed[0], signal.SIGKILL)

    local = played(coder, tmp_path, on_done=kill_once)
    history = local.history()
    assert ["signal 9" in failure.message for failure in history.failures] == [True]
    # The answer that it had before it was killed was sampled once, and told again from the record.
    # So was a title that it asks for without tools, where the call is text.
    generations = [step for step in history.generations if ASKS in step.message.text]
    assert len(generations) == sum(ASKS not in text(request) for request in local.policy.requests)
    # No word about forks: some agents tell their model how long a command took.
    assert_token_exact(local)


def _agent_of_this_process() -> int:
    """The one child of ours that leads a group of its own."""
    tasks = Path(f"/proc/{os.getpid()}/task")
    children = {
        int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()
    }
    (agent,) = {child for child in children if os.getpgid(child) == child}
    return agent
