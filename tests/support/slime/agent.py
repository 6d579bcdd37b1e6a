"""A rollout of two turns, a member of which fails, or has no reward, where the task says so."""

import holdfast


async def solve(t: holdfast.Rollout) -> float | None:
    t.add(*t.task.messages)
    await t.generate(max_tokens=12)
    if t.task.ground_truth == "breaks" and t.key.sample == 1:
        raise RuntimeError("this member always fails")
    t.add(holdfast.user("and now?"))
    reply = await t.generate(max_tokens=12)
    if t.task.ground_truth == "unscored" and t.key.sample == 1:
        return None
    return float(len(reply.text) % 2)


async def unscored(t: holdfast.Rollout) -> None:
    t.add(*t.task.messages)
    await t.generate(max_tokens=8)


async def fork(t: holdfast.Rollout) -> float:
    """Two branches from one prompt."""
    t.add(*t.task.messages)
    await t.branch(_reply, _reply)
    return 1.0


async def _reply(t: holdfast.Rollout) -> None:
    await t.generate(max_tokens=8)
