"""Rows are dealt out: every sequence once, as many rows for each rank, of about the same cost."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.training.batch import TrainedSequence
from holdfast.training.microbatches import cost, deal
from holdfast.training.packing.rows import TokenSequence, pack

HIDDEN = 64


def sequence(ids, *, family=0, weight=1.0):
    trained = list(range(1, len(ids)))
    each = [float(number) for number in trained]
    return TrainedSequence(TokenSequence(ids, trained, family), each, each, each, weight)


def sequences_of(seed, count=12, longest=60):
    chance = random.Random(seed)
    results = []
    for number in range(count):
        family = number // 3
        shared = [family * 7 + place for place in range(chance.randint(1, 8))]
        own = [chance.randrange(3, 900) for _ in range(chance.randint(2, longest - 8))]
        results.append(sequence(shared + own, family=family, weight=float(number)))
    return results


def dealt(sequences, ranks, *, budget=64, **options):
    return deal(sequences, ranks=ranks, budget=budget, share=True, hidden=HIDDEN, **options)


@given(seed=st.integers(0, 10**6), ranks=st.integers(1, 5), one_by_one=st.booleans())
def test_every_sequence_is_in_one_row_with_all_that_counts(seed, ranks, one_by_one):
    sequences = sequences_of(seed)
    rounds = dealt(sequences, ranks, one_by_one=one_by_one)
    assert {len(together) for together in rounds} == {ranks}
    rows = [row for together in rounds for row in together if row is not None]
    assert sorted(number for row in rows for number in row.members) == list(range(len(sequences)))
    for row in rows:
        own = [sequences[number] for number in row.members]
        assert len(row.row.ids) <= 64
        assert row.weights == [s.weight for s in own]
        assert row.lengths == [len(s.tokens.trained) for s in own]
        assert row.advantages == [value for s in own for value in s.advantages]
        assert len(row.temperatures) == len(row.engine_logprobs) == len(row.row.targets)
    assert dealt(sequences, ranks, one_by_one=one_by_one) == rounds


def test_one_rank_gets_the_rows_as_they_were_packed():
    sequences = sequences_of(1)
    packed = pack([s.tokens for s in sequences], budget=64)
    assert [row.row for (row,) in dealt(sequences, 1)] == packed


def test_what_fits_into_one_row_is_cut_for_all_ranks():
    sequences = [sequence([100 * n + place for place in range(50)], family=n) for n in range(8)]
    (together,) = deal(sequences, ranks=4, budget=10_000, share=True, hidden=HIDDEN)
    assert [len(row.row.ids) for row in together] == [100] * 4


def test_rows_of_a_round_cost_about_the_same():
    chance = random.Random(5)
    lengths = [chance.choice([20, 40, 400, 800]) for _ in range(64)]
    sequences = [
        sequence([n * 1000 + place for place in range(length)], family=n)
        for n, length in enumerate(lengths)
    ]
    rounds = deal(sequences, ranks=4, budget=1000, share=True, hidden=HIDDEN)
    costs = [[cost(row.row, HIDDEN) if row else 0.0 for row in together] for together in rounds]
    waited = sum(4 * max(each) for each in costs)
    assert sum(map(sum, costs)) > 0.9 * waited


def test_a_rank_without_a_row_has_none():
    (first,) = dealt([sequence([1, 2, 3])], 3)
    assert [row is None for row in first] == [False, True, True]
    assert dealt([], 3) == []


def test_attention_is_part_of_the_cost():
    (long,) = pack([TokenSequence(list(range(1000)), [1])], budget=1000)
    short = pack([TokenSequence([n, 1], [1], n) for n in range(500)], budget=1000)
    assert sum(len(row.ids) for row in short) == len(long.ids)
    assert cost(long, HIDDEN) > 2 * sum(cost(row, HIDDEN) for row in short)
    assert cost(long, 10**9) == pytest.approx(1000)
