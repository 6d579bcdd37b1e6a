"""Prompts for tiny models."""

import random

from support.embedded.tiny_models import VOCABULARY


def prompt(length: int, *, seed: int = 0) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(VOCABULARY) for _ in range(length)]
