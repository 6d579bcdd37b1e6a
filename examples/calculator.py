"""An agent with a calculator: turns until it stops calling the tool, six at the most."""

import holdfast


@holdfast.tool(contract="idempotent")
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


async def solve(t: holdfast.Rollout) -> None:
    t.add(*t.task.messages)
    for _turn in range(6):
        reply = await t.generate(tools=[add])
        if not reply.tool_calls:
            return
        for call in reply.tool_calls:
            await t.tool(call, add)
    t.truncate("max_turns")


def score(trajectory: holdfast.TrajectoryView) -> float:
    """How often the calculator was used without a mistake."""
    uses = trajectory.tool_uses
    return sum(use.result is not None and use.result.error == "" for use in uses) / max(
        1, len(uses)
    )
