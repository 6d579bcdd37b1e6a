"""Samples of one turn, with tokens of a tool in it."""

import random

from holdfast.records.samples.sample import Sample, TurnSpan


def make(task: str, number: int, reward: float | None, chance: random.Random) -> Sample:
    prompt, reply = chance.randint(2, 9), chance.randint(1, 12)
    mask = [0 if 2 < place < 5 else 1 for place in range(reply)]
    return Sample(
        task=task,
        group=task,
        sample=number,
        branch=0,
        status="COMPLETED",
        reason="",
        token_ids=[chance.randrange(3, 900) for _ in range(prompt + reply)],
        loss_mask=[0] * prompt + mask,
        logprobs=[0.0] * prompt + [-2 * chance.random() * bit for bit in mask],
        version_spans=[],
        reward=reward,
        trajectory=f"{task}/{number}",
        turns=[TurnSpan(prompt, prompt + reply, 1.0, 1.0, True)],
    )
