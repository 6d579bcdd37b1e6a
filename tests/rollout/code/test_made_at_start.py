"""What is set to something of this start: what else it is made of counts."""

import os
import time
import uuid
from datetime import date
from pathlib import Path

import pytest

from holdfast.rollout.code.fingerprint import fingerprint_of


def dated_prompt(system):
    prompt = f"{system}\nToday is {date.today()}"

    async def rollout(t):
        t.add(prompt)

    return rollout


def seeded(system):
    seed = system or int(time.time())

    async def rollout(t):
        print(seed)

    return rollout


class Stamped:
    def __init__(self, system):
        self.folder = Path(system) / f"{time.strftime('%Y%m%d-%H%M%S')}"

    async def __call__(self, t):
        print(self.folder)


@pytest.mark.parametrize("make", [dated_prompt, seeded, Stamped])
def test_what_stands_beside_a_time_counts(make) -> None:
    assert fingerprint_of(make("A")) == fingerprint_of(make("A"))
    assert fingerprint_of(make("A")) != fingerprint_of(make("B"))


def drawn():
    name = f"run-{uuid.uuid4().hex[:6]}-{os.getpid()}"
    began = time.time()

    async def rollout(t):
        print(name, began)

    return rollout


def test_what_is_drawn_does_not_count() -> None:
    first = fingerprint_of(drawn())
    assert first == fingerprint_of(drawn())
