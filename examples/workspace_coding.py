"""A coding task: an agent in a workspace, scored by the tests that pass and that it has not seen.

    holdfast run examples/workspace_coding.py --tasks examples/coding.jsonl --samples 4

Each row names the files that the agent finds, the one that it is to write, and the tests. Commands
run within bubblewrap where it works (docs/workspace.md). The reward is the share of the tests that
pass. Needs pytest where the run does.
"""

from collections.abc import Sequence
from typing import cast

import holdfast
from holdfast.environments import Workspace
from holdfast.rollout.episodes.episode import Episode

SYSTEM = (
    "You are a programmer. Work in the current folder with the tools, and stop when it is done."
)


def workspace(task: holdfast.Task) -> Workspace:
    return Workspace(cast("dict[str, str]", task.metadata["files"]), command_timeout=20.0)


async def run_tests(t: holdfast.Rollout, episodes: Sequence[Episode]) -> float:
    """In a fresh folder, with nothing of the agent's but what it was asked for."""
    (episode,) = episodes
    tests = cast("dict[str, str]", t.task.metadata["tests"])
    keep = cast("list[str]", t.task.metadata["keep"])
    place = cast("Workspace", episode.environment)
    seen = await episode.step(place.scoring("python -m pytest -q", tests, keep=keep))
    counts = [cast("int", seen.info[name]) for name in ("passed", "failed", "errors")]
    return counts[0] / max(1, sum(counts))


agent = holdfast.AgentRolloutProcessor(
    environments=[workspace], system_prompt=SYSTEM, max_turns=8, max_tokens=4000, finish=run_tests
)
