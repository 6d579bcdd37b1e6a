"""A game of gymnasium: over the ice to the goal, around the holes. A kill costs no step of it.

    holdfast run examples/frozen_lake.py --tasks examples/frozen_lake.jsonl --samples 4

What is not an action is answered with a list of those there are. The reward is the sum of those of
the steps: 1 at the goal; the embedded engine's small model plays badly, and gets 0. Needs gymnasium
(`pip install '.[gym]'`, in the clone).
"""

import holdfast
from holdfast.environments import GymEnvironment

MOVES = {"left": 0, "down": 1, "right": 2, "up": 3}


async def cross(t: holdfast.Rollout) -> None:
    t.limit(turns=20)
    lake = await t.env(
        GymEnvironment(
            "FrozenLake-v1",
            actions=MOVES,
            desc=t.task.metadata["map"],
            is_slippery=t.task.metadata["slippery"],
        )
    )
    t.add(*t.task.messages, lake.observation)
    while not lake.over:
        reply = await t.generate(max_tokens=64)
        t.add(await lake.step(reply.text))
