"""What the probe sees: other weights, the version before, and that two versions are alike."""

import random

import pytest

from holdfast.weights.probe import CANDIDATES, CHOSEN, NOISE, chosen_scores, compared
from holdfast.weights.version import PREFIXES

IDS = tuple(range(PREFIXES[-1]))


def logprobs(seed: int, *, near: list[float] | None = None, by: float = 0.0) -> list[float]:
    """At all candidates; `near` others, `by` so much off."""
    chance = random.Random(seed)
    base = near or [-chance.uniform(0.5, 4) for _ in CANDIDATES]
    return [value + chance.gauss(0, by) for value in base]


def at(scores, values: list[float]) -> list[float]:
    return [values[CANDIDATES.index(length)] for length in scores.lengths]


def test_the_trainer_chooses_where_two_versions_differ_most_and_the_last_beginnings():
    old = logprobs(0)
    new = list(old)
    for place in (7, 50, 120):
        new[place] -= 0.1
    scores = chosen_scores(IDS, new, old, "float32")
    assert {CANDIDATES[place] for place in (7, 50, 120)} <= set(scores.lengths)
    assert set(PREFIXES[-2:]) <= set(scores.lengths)
    assert CHOSEN <= len(scores.lengths) <= CHOSEN + 2
    assert chosen_scores(IDS, new, (), "float32").lengths == PREFIXES


@pytest.mark.parametrize(
    ("dtype", "step"), [("float32", 4e-4), ("bfloat16", 0.15), ("float16", 0.02)]
)
@pytest.mark.parametrize("seed", range(20))
def test_an_engine_that_kept_the_version_before_is_seen_below_the_tolerance(dtype, step, seed):
    old = logprobs(seed)
    new = logprobs(seed + 100, near=old, by=step)
    scores = chosen_scores(IDS, new, old, dtype)
    took = logprobs(seed + 200, near=new, by=NOISE[dtype])
    kept = logprobs(seed + 300, near=old, by=NOISE[dtype])
    right, wrong = compared(at(scores, took), scores), compared(at(scores, kept), scores)
    assert not right.is_blind
    assert not right.is_other, right.text
    assert wrong.is_other


@pytest.mark.parametrize("step", [0.0, 1e-4, 0.005, 0.02, 0.05, 0.2])
@pytest.mark.parametrize("noise", [NOISE["bfloat16"], 2 * NOISE["bfloat16"]])
def test_an_engine_with_the_new_weights_is_never_taken_for_one_with_those_before(step, noise):
    refused = 0
    for seed in range(300):
        old = logprobs(seed)
        new = logprobs(seed + 1000, near=old, by=step)
        scores = chosen_scores(IDS, new, old, "bfloat16")
        took = logprobs(seed + 2000, near=new, by=noise)
        result = compared(at(scores, took), scores)
        refused += result.text.endswith("the version before")
    assert refused == 0


def test_versions_that_are_alike_within_the_noise_are_said_to_be():
    old = logprobs(0)
    new = logprobs(1, near=old, by=NOISE["bfloat16"] / 10)
    scores = chosen_scores(IDS, new, old, "bfloat16")
    result = compared(at(scores, old), scores)
    assert result.is_blind
    assert not result.is_other


def test_other_weights_are_seen_by_their_mean_where_no_single_logprob_is_far_off():
    new = logprobs(0)
    scores = chosen_scores(IDS, new, (), "bfloat16")
    off = [value + (0.3 if number % 2 else -0.3) for number, value in enumerate(at(scores, new))]
    result = compared(off, scores)
    assert result.worst < result.tolerance
    assert result.is_other


def test_a_logprob_that_is_no_number_is_another_weight():
    scores = chosen_scores(IDS, logprobs(0), (), "float32")
    assert compared([float("nan")] * len(scores.lengths), scores).is_other
