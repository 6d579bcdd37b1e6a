"""The crash suite's trajectories in containers: each counts in a file of its world."""

import holdfast

TURNS = 3


async def solve(t: holdfast.Rollout) -> None:
    episode = await t.env(holdfast.WorldEnvironment("docker:busybox", snapshot_every=2))
    t.add(*t.task.messages)
    for turn in range(TURNS):
        await t.generate(max_tokens=8)
        seen = await episode.step(f"echo {turn} >> /log; (sleep 600 &); cat /log")
        assert seen.text.split() == [str(number) for number in range(turn + 1)], seen.text
        t.add(holdfast.user(seen.text))


def score(trajectory: holdfast.TrajectoryView) -> float:
    return float(len(trajectory.turns))
