"""Two hundred trajectories, every kind of broken tool and environment among them: each fault costs
the trajectories that it hits, and nobody else."""

import os
import signal
import subprocess
import threading
import time

import holdfast
from holdfast.environments.workspace import Workspace
from holdfast.rollout.processors.agent import AgentRolloutProcessor, EnvironmentRolloutProcessor
from support.engine.local_run import LocalRun
from support.environments.mcp_servers.keeping import stdio
from support.exhaustive import points
from support.rollout import worlds
from support.rollout.stage import Oracle

EACH = points(8, 20)
TEN_MEGABYTES = 10_000_000


@holdfast.tool(contract="idempotent")
def fine(word: str) -> str:
    """Works."""
    return word.upper()


@holdfast.tool(contract="idempotent", isolated=True)
def dies(word: str) -> str:
    """Kills the process that it runs in."""
    os.kill(os.getpid(), signal.SIGKILL)
    return word


@holdfast.tool(contract="idempotent", timeout=0.2)
def hangs(word: str) -> str:
    """Comes back much too late."""
    threading.Event().wait(20)
    return word


@holdfast.tool(contract="idempotent", isolated=True, timeout=1)
def hangs_alone(word: str) -> str:
    """Never comes back."""
    time.sleep(1_000)
    return word


@holdfast.tool(contract="idempotent")
def floods(word: str) -> str:
    """Says far too much."""
    return word * (TEN_MEGABYTES // len(word))


@holdfast.tool(contract="idempotent")
def mumbles(word: str) -> bytes:
    """Says what is not text."""
    return b"\xff\xfe" + word.encode() + b"\xc3\x28"


TOOLS = (fine, dies, hangs, hangs_alone, floods, mumbles)
BANK = stdio("bare", recovery="replay")
COMPLETE = ("fine", "floods", "mumbles", "mcp", "world-close", "world-fine", "shell")
FAIL = ("dies", "hangs", "hangs_alone", "world-reset", "world-step")


class AllKinds(holdfast.RolloutProcessor):
    """What a trajectory meets is in its task's name."""

    async def rollout(self, t: holdfast.Rollout) -> object:
        return await self._of(t.task.id.rpartition(".")[0]).rollout(t)

    def _of(self, kind: str) -> holdfast.RolloutProcessor:
        if kind.startswith("world"):
            where = kind.partition("-")[2]
            return EnvironmentRolloutProcessor(lambda task: worlds.Broken(where))
        if kind == "mcp":
            return AgentRolloutProcessor(environments=[lambda task: BANK.environment()])
        if kind == "shell":
            return AgentRolloutProcessor(
                environments=[lambda task: Workspace({}, sandbox="none", command_timeout=0.5)]
            )
        return AgentRolloutProcessor(TOOLS)


def replies(flags):
    """A call on the first turn, and then no more."""
    return lambda request: reply(request, flags)


def reply(request, flags) -> str:
    _, task, _, step = request.id.split("/")
    kind = task.rpartition(".")[0]
    if kind.startswith("world"):
        return "60"
    first = int(step) == (1 if kind in ("mcp", "shell") else 0)
    if not first:
        return "done"
    name, arguments = kind, '{"word": "kelp"}'
    if kind == "mcp":
        name, arguments = "kill_once", f'{{"flag": "{flags / task}"}}'
    elif kind == "shell":
        name, arguments = "shell", '{"command": "echo kelp; sleep 100"}'
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


def children() -> set[str]:
    process = subprocess.run(
        ["ps", "--ppid", str(os.getpid()), "-o", "pid=,stat=,args="], capture_output=True, text=True
    )
    lines = [line.split(maxsplit=2) for line in process.stdout.splitlines()]
    return {args for _, stat, args in lines if "Z" not in stat and not args.startswith("ps ")}


def test_each_fault_costs_its_own_trajectories_only(tmp_path):
    kinds = {**dict.fromkeys(COMPLETE, EACH), **dict.fromkeys(FAIL, EACH // 2)}
    kinds["fine"] += 200 - sum(kinds.values())
    names = [f"{kind}.{number}" for kind, total in kinds.items() for number in range(total)]
    before = children()
    local = LocalRun(*names, policy=Oracle(replies(tmp_path)))
    local.run(AllKinds(), max_retry=1, concurrency=40)
    assert len(names) == 200
    results = local.histories()
    for name, history in results.items():
        kind = name.rpartition(".")[0]
        wanted = "COMPLETED" if kind in COMPLETE else "FAILED"
        assert history.status.name == wanted, (name, history.failures)
        if wanted == "FAILED":
            assert {failure.cause for failure in history.failures} == {"environment"}, name
            assert history.reward is None
    flooded = results["floods.0/0"]
    (result,) = flooded.results.values()
    assert len(result.content) < TEN_MEGABYTES // 50
    assert "left out" in result.content
    (result,) = results["mumbles.0/0"].results.values()
    assert "kelp" in result.content
    (result,) = results["shell.0/0"].results.values()
    assert "timed out" in result.content
    assert results["world-close.0/0"].close_failures
    (result,) = results["mcp.0/0"].results.values()
    assert result.content == "survived"
    assert len(results["mcp.0/0"].failures) == 1
    left = {text for text in children() - before if "isolated_worker" not in text}
    assert not left, "only idle workers are kept"
