"""A rollout of which 1 in 350 raises, after its generation returned."""

import holdfast


async def solve(t: holdfast.Rollout) -> None:
    t.add(*t.task.messages)
    await t.generate(max_tokens=16)
    if int(t.task.id) % 350 == 17:
        raise RuntimeError(f"the parser met something odd in {t.task.id}")
