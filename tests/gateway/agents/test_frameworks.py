"""Agent frameworks behind the gateway, where they are installed.

HOLDFAST_AGENTS_PYTHON names an interpreter that has them; by default it is the tests' own.
"""

import os
import subprocess
import sys
from functools import cache

import pytest

from holdfast.gateway.agents.subprocess import BlackBoxRolloutProcessor
from support.engine.local_run import LocalRun
from support.gateway import warm_agents
from support.gateway.agents import TURNS, adding, assert_each_token_is_trained_once, exported
from support.paths import AGENT_PROGRAMS
from support.rollout.stage import Oracle

PYTHON = os.environ.get("HOLDFAST_AGENTS_PYTHON", sys.executable)
FRAMEWORKS = {
    "openai-agents": ("agents.run", "openai_agents_loop"),
    "openai-agents-chat": ("agents.run", "openai_agents_loop", "--chat"),
    "langgraph": ("langgraph.prebuilt", "langgraph_loop"),
    "langgraph-stream": ("langgraph.prebuilt", "langgraph_loop", "--stream"),
    "pydantic-ai": ("pydantic_ai.models", "pydantic_ai_loop"),
    "pydantic-ai-responses": ("pydantic_ai.models", "pydantic_ai_loop", "--responses"),
}


@cache
def is_installed(module: str) -> bool:
    looked = f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"
    return subprocess.run([PYTHON, "-c", looked], capture_output=True).returncode == 0


@pytest.fixture(params=FRAMEWORKS)
def command(request) -> list[str]:
    module, program, *args = FRAMEWORKS[request.param]
    if not is_installed(module):
        pytest.skip(f"{module} is not installed")
    if sys.executable == PYTHON:
        return warm_agents.command(program, *args)
    return [PYTHON, str(AGENT_PROGRAMS / f"{program}.py"), *args]


def played(command: list[str], **env: str) -> LocalRun:
    local = LocalRun(policy=Oracle(adding))
    local.run(BlackBoxRolloutProcessor(command, env=env))
    history = local.history()
    assert history.status.name == "COMPLETED", history.failures
    assert len(history.generations) == len(local.policy.requests) == TURNS
    assert history.prefix_breaks == 0
    assert not history.forks
    assert_each_token_is_trained_once(local, samples=1)
    return local


def test_a_framework_gives_one_sample_and_is_given_back_its_past_when_it_dies(command, tmp_path):
    calm = played(command)
    crash = {"CRASH_AT": "2", "CRASH_ONCE": str(tmp_path / "crashed")}
    killed = played(command, **crash)
    assert len(killed.history().failures) == 1
    assert exported(killed) == exported(calm)


def test_inspects_probe_of_its_model_is_no_turn():
    if not is_installed("inspect_ai"):
        pytest.skip("inspect_ai is not installed")
    local = LocalRun(policy=Oracle(lambda request: "that is all"))
    program = [PYTHON, str(AGENT_PROGRAMS / "inspect_eval.py")]
    local.run(BlackBoxRolloutProcessor(program, ignore=["reasoning.effort"]))
    history = local.history()
    assert history.status.name == "COMPLETED", history.failures
    assert len(local.policy.requests) == 2, "a probe, and the sample"
    assert len(history.generations) == 1
    assert_each_token_is_trained_once(local, samples=1)
