"""A coding task in a container: an agent with a shell, scored by tests that it has not seen.

    holdfast run examples/container_coding.py --tasks examples/coding.jsonl --samples 4 \
        --world docker:./examples/container,workdir=/work

Each trajectory has a container of its own, which comes back after any kill (docs/worlds.md). The
tests run in it when the agent is done. The reward is 1 if all of them pass.
"""

from collections.abc import Mapping, Sequence
from typing import cast

import holdfast
from holdfast.rollout.episodes.episode import Episode

SYSTEM = "You are a programmer. Work in /work with the tools, and stop when it is done."


def world(task: holdfast.Task) -> holdfast.WorldEnvironment:
    files = cast("Mapping[str, str]", task.metadata["files"])
    return holdfast.WorldEnvironment(files=files, command_timeout=20.0)


async def run_tests(t: holdfast.Rollout, episodes: Sequence[Episode]) -> float:
    (episode,) = episodes
    tests = cast("Mapping[str, str]", t.task.metadata["tests"])
    for name, text in tests.items():
        await episode.step(f"cat > {name} <<'END_OF_FILE'\n{text}\nEND_OF_FILE")
    seen = await episode.step(f"python -m pytest -q {' '.join(tests)}")
    return float(seen.info["exit_code"] == 0)


agent = holdfast.AgentRolloutProcessor(
    environments=[world], system_prompt=SYSTEM, max_turns=8, max_tokens=4000, finish=run_tests
)
