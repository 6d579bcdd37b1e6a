"""The rollout of `vllm_training.py`: the model writes one short sentence with a given word."""

import re

import holdfast

WORDS = re.findall(
    r"\w+",
    "animal city country fruit color river bird fish flower tree metal sport planet language "
    "instrument month vegetable drink job tool shape insect season mountain number letter car "
    "book game dance gem fabric house garden bridge window table doctor teacher farmer sailor "
    "king song story picture market winter summer morning island forest desert ocean train "
    "bicycle clock bread apple cheese honey lamp shoe guitar pencil",
)
WAYS = (
    "Write a short sentence with the word {}.",
    "Use the word {} in a short sentence.",
    "Make a short sentence that has the word {}.",
    "Give me a short sentence with the word {} in it.",
)
TASKS = [
    {"id": f"{word}-{number}", "prompt": way.format(word), "ground_truth": word}
    for number, way in enumerate(WAYS)
    for word in WORDS
]
LONGEST = 24
"""How many words a short sentence may have."""


async def answer(t: holdfast.Rollout) -> None:
    t.add(*t.task.messages)
    await t.generate()


def score(trajectory: holdfast.TrajectoryView) -> float:
    has_word = re.search(rf"\b{trajectory.task.ground_truth}", trajectory.reply.lower())
    return float(has_word is not None and len(trajectory.reply.split()) <= LONGEST)
