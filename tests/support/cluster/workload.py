"""The rollout of the cluster tests: turns, a tool, a scorer; each notes the process it ran in."""

import os
from pathlib import Path

import holdfast

TURNS = int(os.environ.get("HOLDFAST_WORKLOAD_TURNS", "4"))


@holdfast.tool(contract="idempotent")
async def look_up(word: str) -> str:
    return f"{word} means {len(word)}"


async def rollout(t: holdfast.Rollout) -> None:
    note("rollout", t.key)
    t.add(*t.task.messages)
    for turn in range(TURNS):
        reply = await t.generate(max_tokens=8)
        result = await t.tool(look_up.call(word=reply.text[:4]), look_up)
        t.add(f"turn {turn}: {result.content}")
    await t.generate(max_tokens=8)


def score(view: holdfast.TrajectoryView) -> float:
    note("score", view.key)
    return sum(len(turn.step.message.text) for turn in view.turns) / 100


def note(what: str, key: object) -> None:
    """For the test: which process did what."""
    if place := os.environ.get("HOLDFAST_WORKLOAD_NOTES"):
        with (Path(place) / f"{what}-{os.getpid()}").open("a") as file:
            file.write(f"{key}\n")
