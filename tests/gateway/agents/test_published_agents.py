"""Agents and their frameworks from PyPI and npm behind the gateway (`make agents`): unchanged, but
for address and key. mini-swe-agent on LiteLLM, smolagents, the Vercel AI SDK.

The policy answers from a script, so that each run proves the agent's wire and its history.
"""

import json
import os

import pytest
from msgspec import Struct

from holdfast.gateway.agents.subprocess import BlackBoxRolloutProcessor
from support.engine.local_run import LocalRun
from support.paths import AGENT_PROGRAMS
from support.rollout.stage import Oracle

FOLDER = os.environ.get("HOLDFAST_AGENTS_DIR", "")
pytestmark = pytest.mark.skipif(not FOLDER, reason="`make agents` installs them and runs this")

PYTHON, MINI = (f"{FOLDER}/python/bin/{item}" for item in ("python", "mini"))
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


class Published(Struct, frozen=True):
    command: tuple[str, ...]
    replies: tuple[str, ...]
    """One for each call that it makes."""
    breaks: int = 0
    """How often it writes its own past anew."""


def calling(name: str, text: str = "", **arguments: object) -> str:
    call = json.dumps({"name": name, "arguments": arguments})
    return f"{text}<tool_call>{call}</tool_call>"


VERCEL = ("node", str(AGENT_PROGRAMS / "vercel_loop.mjs"))
ADDS = calling("plus", "so ", a=1, b=2)
AGENTS = {
    "mini-swe-agent": Published(
        (
            *(MINI, "-t", "make it", "-y", "--exit-immediately"),
            *("-m", "openai/oracle", "-l", "0", "-o", "trajectory.json"),
        ),
        (calling("bash", "I make it. ", command="true"), calling("bash", command=SUBMIT)),
    ),
    # Its past is told as text, without the calls that it was.
    "smolagents": Published(
        (PYTHON, str(AGENT_PROGRAMS / "smolagents_loop.py")),
        (calling("plus", a=1, b=2), calling("final_answer", answer="3")),
        breaks=1,
    ),
    "vercel": Published(VERCEL, (ADDS, "it is 3")),
    "vercel, streaming": Published((*VERCEL, "--stream"), (ADDS, "it is 3")),
    "vercel, going on": Published((*VERCEL, "--state"), (ADDS, "it is 3", "no more")),
}


@pytest.fixture(params=AGENTS)
def published(request) -> Published:
    return AGENTS[request.param]


def test_a_published_agent_does_its_work_and_is_refused_nothing(published, tmp_path):
    left = list(published.replies)
    local = LocalRun(policy=Oracle(lambda request: left.pop(0)))
    env = {
        "AGENTS_DIR": FOLDER,
        "HOME": str(tmp_path),
        "PYTHONPATH": str(AGENT_PROGRAMS),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
    }
    local.run(BlackBoxRolloutProcessor(published.command, env=env))
    history = local.history()
    assert history.status.name == "COMPLETED", [failure.message for failure in history.failures]
    assert not history.failures
    assert not history.refusals
    assert len(history.generations) == len(published.replies)
    assert history.prefix_breaks == published.breaks
    assert sum(sum(row["loss_mask"]) for row in local.rows()) == history.sampled_tokens
