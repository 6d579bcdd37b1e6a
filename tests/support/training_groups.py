"""Groups to train on, made up from a seed."""

import random

from holdfast.records.samples.sample import Sample, TurnSpan
from holdfast.training.batch import TrainedTrajectory, TrainingGroup


def groups_of(seed: int, *, at_most: int = 3) -> list[TrainingGroup]:
    """Groups of unequal size; members of several turns, some of them in branches."""
    chance = random.Random(seed)
    groups = []
    for number in range(chance.randint(1, at_most)):
        prompt = [chance.randrange(3, 1000) for _ in range(chance.randint(2, 9))]
        members = []
        for member in range(chance.randint(2, 4)):
            samples = tuple(
                _sample(chance, prompt, branch) for branch in range(chance.choice([1, 1, 2]))
            )
            members.append(TrainedTrajectory(f"{number}/{member}", chance.random(), samples))
        groups.append(TrainingGroup(str(number), tuple(members)))
    return groups


def _sample(chance: random.Random, prompt: list[int], branch: int) -> Sample:
    ids, mask, turns = list(prompt), [0] * len(prompt), []
    for _ in range(chance.randint(1, 2)):
        start = len(ids)
        ids += [chance.randrange(3, 1000) for _ in range(chance.randint(1, 8))]
        mask += [1] * (len(ids) - start)
        turns.append(TurnSpan(start, len(ids), chance.choice([0.7, 1.0, 1.3]), 1.0, True))
        ids += [9, 8]
        mask += [0, 0]
    logprobs = [-chance.uniform(3, 9) if trained else 0.0 for trained in mask]
    return Sample(
        task="a", group="a", sample=0, branch=branch, status="COMPLETED", reason="",
        token_ids=ids, loss_mask=mask, logprobs=logprobs, version_spans=[], reward=0.0, turns=turns,
    )  # fmt: skip
