"""A simulated user: a shop assistant and its customer, whom the same engine plays, untrained.

    holdfast run examples/dialogue.py --tasks examples/shop.jsonl --samples 4

The embedded engine's small model knows arithmetic, no shops: with it, rewards are 0 as a rule.

To let another model play the customer, give `user_policy=holdfast.EnginePolicy(URL, MODEL)` and
`user_renderer=holdfast.renderer_for(FOLDER)`.
"""

import holdfast

PRICES = {"rope": 12, "anchor": 95, "lantern": 30}


@holdfast.tool(contract="idempotent")
def price(item: str) -> int:
    """Looks up what an item costs."""
    if item not in PRICES:
        raise holdfast.ToolSaysNo(f"we do not sell {item!r}; we sell {', '.join(PRICES)}")
    return PRICES[item]


def customer(task: holdfast.Task) -> str:
    return (
        f"You are a customer of a ship chandler. You want {task.metadata['wants']}. Speak in one "
        "short sentence at a time. When you know the price, or lose patience, say ###STOP###."
    )


talk = holdfast.DialogueRolloutProcessor(
    customer,
    tools=[price],
    system_prompt="You sell rope, anchors and lanterns. Be brief and honest.",
    user_max_tokens=48,
    max_turns=4,
)


def score(trajectory: holdfast.TrajectoryView) -> float:
    """Whether the assistant ever named the right price."""
    right = str(PRICES[str(trajectory.task.metadata["wants"])])
    said = [turn.step.message.text for turn in trajectory.turns if turn.step.trainable]
    return float(any(right in text for text in said))
