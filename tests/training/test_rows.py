"""Packing: every sequence once, common beginnings once, never over the budget."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.records.errors import UsageError
from holdfast.training.packing.rows import TokenSequence, pack

SEQUENCES = st.lists(
    st.builds(
        lambda ids, family: TokenSequence(ids, list(range(1, len(ids))), family),
        st.lists(st.integers(0, 2), min_size=1, max_size=12),
        st.integers(0, 2),
    ),
    max_size=10,
)


def unpacked(rows):
    """(sequence, index) → (the tokens on the path up to the predictor, the target)."""
    result = {}
    for row in rows:
        for segment in row.segments:
            assert row.positions[segment.start] == segment.position
        owner = {
            place: number
            for number, segment in enumerate(row.segments)
            for place in range(segment.start, segment.end)
        }
        for predictor, target, sequence, index in zip(
            row.predictors, row.targets, row.sequences, row.indices, strict=True
        ):
            path = row.path(owner[predictor])
            seen = [
                row.ids[place]
                for part in path
                for place in range(row.segments[part].start, row.segments[part].end)
                if part != path[-1] or place <= predictor
            ]
            assert (sequence, index) not in result
            result[sequence, index] = (seen, target)
    return result


@settings(max_examples=200)
@given(SEQUENCES, st.booleans(), st.integers(12, 40))
def test_every_trained_token_is_predicted_once_from_its_own_beginning(sequences, share, budget):
    rows = pack(sequences, budget=budget, share=share)
    assert all(len(row.ids) <= budget for row in rows)
    expected = {
        (number, index): (list(sequence.ids[:offset]), sequence.ids[offset])
        for number, sequence in enumerate(sequences)
        for index, offset in enumerate(sequence.trained)
    }
    assert unpacked(rows) == expected


@given(SEQUENCES, st.booleans())
def test_the_trained_tokens_of_a_sequence_follow_each_other(sequences, share):
    for row in pack(sequences, budget=40, share=share):
        expected = [
            (number, index)
            for number in dict.fromkeys(row.sequences)
            for index in range(len(sequences[number].trained))
        ]
        assert list(zip(row.sequences, row.indices, strict=True)) == expected


@given(SEQUENCES)
def test_positions_count_along_the_path(sequences):
    for row in pack(sequences, budget=200):
        for number, segment in enumerate(row.segments):
            before = sum(
                row.segments[part].end - row.segments[part].start for part in row.path(number)[:-1]
            )
            expected = list(range(before, before + segment.end - segment.start))
            assert row.positions[segment.start : segment.end] == expected


def test_a_groups_prompt_is_there_once():
    prompt = list(range(100, 150))
    group = [TokenSequence([*prompt, n, n + 1], [50, 51]) for n in range(8)]
    (row,) = pack(group, budget=1000)
    assert len(row.ids) == 50 + 8 * 2
    assert len(row.segments) == 1 + 8
    (plain,) = pack(group, budget=1000, share=False)
    assert len(plain.ids) == 8 * 52
    assert len(plain.segments) == 8


def test_a_sequence_that_is_the_beginning_of_another_costs_nothing():
    long, short = TokenSequence([1, 2, 3, 4], [3]), TokenSequence([1, 2], [1])
    (row,) = pack([long, short], budget=4)
    assert row.ids == [1, 2, 3, 4]
    assert sorted(zip(row.sequences, row.predictors, row.targets, strict=True)) == [
        (0, 2, 4), (1, 0, 2),
    ]  # fmt: skip


def test_what_does_not_fit_is_refused_and_never_dropped():
    with pytest.raises(UsageError, match="sequence 1 has 5 tokens"):
        pack([TokenSequence([1], []), TokenSequence([1] * 5, [])], budget=4)
    with pytest.raises(UsageError, match="first token"):
        pack([TokenSequence([1, 2], [0])], budget=4)


def test_rows_are_filled():
    sequences = [TokenSequence([n] * size, [1]) for n, size in enumerate([6, 5, 4, 3, 2])]
    rows = pack(sequences, budget=10, share=False)
    assert [len(row.ids) for row in rows] == [10, 10]
