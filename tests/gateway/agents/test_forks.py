"""A fork of an agent that works in a folder: the folder is as it was at the turn."""

import asyncio
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.environments import Workspace
from holdfast.gateway.agents.subprocess import BlackBoxRolloutProcessor
from holdfast.policy.rendering.renderer import ByteRenderer
from support.paths import AGENT_PROGRAMS
from support.rollout.stage import Oracle, text_of

AGENT = [sys.executable, str(AGENT_PROGRAMS / "folder_agent.py")]
CALL = '<tool_call>{{"name": "add", "arguments": {{"a": {}, "b": 2}}}}</tool_call>'
TASKS = [{"id": "t", "prompt": "add"}]


def adding(request):
    turn = text_of(request.prompt).count("assistant\n")
    return "that is all" if turn > 3 else CALL.format(turn)


def world(restore: str) -> holdfast.WorkspaceWorld:
    def workspace(task):
        return Workspace({"readme": "add"}, read_only=[str(AGENT_PROGRAMS)])

    return holdfast.WorkspaceWorld(workspace, restore=restore)


@pytest.mark.parametrize("restore", ["start", "latest"])
def test_a_fork_of_an_agent_goes_on_in_its_folder(tmp_path: Path, restore: str) -> None:
    resume = {"resume_command": [*AGENT, "--resume"]} if restore == "latest" else {}
    policy, journal = Oracle(adding), tmp_path / "runs.db"

    def agent() -> BlackBoxRolloutProcessor:
        return BlackBoxRolloutProcessor(AGENT, world=world(restore), **resume)

    first = holdfast.run_sync(
        agent(), tasks=TASKS, policy=policy, renderer=ByteRenderer(), journal=journal, name="first"
    )
    turns = first.trajectories[0].history.generations
    assert len(turns) == 4
    policy.requests.clear()
    done = asyncio.run(
        holdfast.fork(
            agent(), run="first", trajectory="t/0", at=turns[2].path, say="Hurry.", policy=policy,
            renderer=ByteRenderer(), journal=journal, name="forked",
        )
    )  # fmt: skip
    (forked,) = done.trajectories
    assert forked.status.name == "COMPLETED", forked.history.failures
    assert len(policy.requests) == 2
    prompt = text_of(policy.requests[-1].prompt)
    assert "Hurry." in prompt
    assert [f"{lines} lines in" in prompt for lines in (1, 2, 3, 4)] == [True, True, True, False]
    ledgers = [prompt.count(f"{lines} lines in") for lines in (1, 2, 3)]
    assert ledgers == [1, 1, 1], "what the agent did before the turn is there once"
