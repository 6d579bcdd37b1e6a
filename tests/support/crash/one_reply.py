"""One long reply: what is lost of it is lost of a stream."""

import holdfast


async def solve(t: holdfast.Rollout) -> None:
    t.add(*t.task.messages)
    await t.generate()
