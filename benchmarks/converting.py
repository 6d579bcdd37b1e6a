"""Converting samples to verl's, slime's and TRL's formats, against copying the same arrays.

Copying is what any converter has to do: ids, masks and logprobs of each sample into an array of its
own (verl), or into a list of its own (slime, TRL). CPU seconds; the sides take turns. A sample has
4,000 tokens, as in an agent's trajectory; fewer of them than a batch of 10,000, so that it fits.
"""

import gc
import random
import statistics
import time
import tracemalloc
from array import array
from collections.abc import Callable

import numpy as np
from result import Result

from holdfast.convert import to_slime, to_trl, to_verl
from holdfast.records.samples.sample import Sample, TurnSpan

GROUPS, SAMPLES, TOKENS, PROMPT = 125, 8, 4000, 500
ROUNDS = 5
BOUND = 2.0


def measure() -> list[Result]:
    samples = _samples()
    return [
        _against(samples, "verl", lambda: to_verl(samples), lambda: _arrays(samples)),
        _against(samples, "slime", lambda: to_slime(samples), lambda: _lists(samples)),
        _against(samples, "TRL", lambda: to_trl(samples), lambda: _lists(samples)),
        _memory(samples),
    ]


def _samples() -> list[Sample]:
    chance = random.Random(0)
    return [_sample(f"task-{g}", n, chance) for g in range(GROUPS) for n in range(SAMPLES)]


def _sample(task: str, number: int, chance: random.Random) -> Sample:
    reply = TOKENS - PROMPT
    return Sample(
        task=task,
        group=task,
        sample=number,
        branch=0,
        status="COMPLETED",
        reason="",
        token_ids=[chance.randrange(150_000) for _ in range(TOKENS)],
        loss_mask=[0] * PROMPT + [1] * reply,
        logprobs=[0.0] * PROMPT + [-chance.random() for _ in range(reply)],
        version_spans=[],
        reward=float(number % 2),
        trajectory=f"{task}/{number}",
        turns=[TurnSpan(PROMPT, TOKENS, 1.0, 1.0, True)],
    )


def _arrays(samples: list[Sample]) -> list[object]:
    return [
        (
            np.array(array("q", sample.token_ids)),
            np.array(array("q", sample.loss_mask)),
            np.array(array("d", sample.logprobs), dtype=np.float32),
        )
        for sample in samples
    ]


def _lists(samples: list[Sample]) -> list[object]:
    return [
        (list(sample.token_ids), list(sample.loss_mask), list(sample.logprobs))
        for sample in samples
    ]


def _against(
    samples: list[Sample], name: str, convert: Callable[[], object], copy: Callable[[], object]
) -> Result:
    convert()
    copy()
    ratios, seconds = [], []
    for number in range(ROUNDS):
        sides = (convert, copy) if number % 2 else (copy, convert)
        taken = {side: _cpu(side) for side in sides}
        ratios.append(taken[convert] / taken[copy])
        seconds.append(taken[convert])
    ratio = statistics.median(ratios)
    return Result(
        f"converting to {name}, against copying the arrays",
        ratio,
        "×",
        f"≤ {BOUND:g}",
        f"{len(samples):,} samples of {TOKENS:,} tokens: "
        f"{1000 * statistics.median(seconds):.0f} ms of CPU",
    )


def _cpu(work: Callable[[], object]) -> float:
    gc.collect()
    began = time.process_time()
    kept = work()
    taken = time.process_time() - began
    del kept
    return taken


def _memory(samples: list[Sample]) -> Result:
    """The batch: what its tensors hold."""
    tracemalloc.start()
    batch = to_verl(samples)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    views = ("prompts", "responses")
    size = sum(value.nbytes for name, value in batch.tensors.items() if name not in views)
    return Result(
        "memory of converting to verl, against the batch",
        peak / size,
        "×",
        f"≤ {BOUND:g}",
        f"{size / 1e6:.0f} MB",
    )
