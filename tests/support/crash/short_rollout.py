"""Two turns of a few tokens, and a reward that differs from sample to sample: cheap to train on."""

import holdfast


async def solve(t: holdfast.Rollout) -> None:
    t.add(*t.task.messages)
    await t.generate(max_tokens=8)
    t.add(holdfast.user("And now?"))
    await t.generate(max_tokens=8)


def score(trajectory: holdfast.TrajectoryView) -> float:
    return sum(map(ord, trajectory.reply)) % 7 / 6
