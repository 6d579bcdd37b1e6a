"""Rows of an asynchronous trainer: trained once, left out, or still on their way."""

import random

import pytest

from holdfast.delivery.taken_rows import TakenRow, TakenRows


def rows(task: str, *numbers: int) -> list[TakenRow]:
    return [TakenRow(task, number) for number in numbers]


def taken(*groups: tuple[str, int]) -> TakenRows:
    taken_rows = TakenRows()
    for task, size in groups:
        for number in range(size):
            taken_rows.take(TakenRow(task, number), group=range(size))
    return taken_rows


def test_a_micro_batch_that_is_formed_is_not_trained_yet() -> None:
    taken_rows = taken(("a", 2), ("b", 2))
    assert taken_rows.form(rows("a", 0, 1), step=1) == []
    assert taken_rows.form(rows("b", 0, 1), step=1) == []
    assert taken_rows.ended() == []
    taken_rows.train(step=1)
    assert taken_rows.ended() == [("a", 1)]
    taken_rows.train(step=2)
    assert taken_rows.ended() == [("a", 1), ("b", 2)]


def test_a_group_over_two_steps_ends_with_the_later_one_and_is_split_between() -> None:
    taken_rows = taken(("a", 3))
    taken_rows.form(rows("a", 0, 1), step=1)
    taken_rows.form(rows("a", 2), step=1)
    taken_rows.train(step=1)
    assert taken_rows.ended() == []
    assert taken_rows.split() == {"a": [0, 1]}
    taken_rows.train(step=2)
    assert taken_rows.ended() == [("a", 2)]
    assert taken_rows.split() == {}


def test_what_was_taken_and_is_in_no_micro_batch_was_left_out() -> None:
    taken_rows = taken(("old", 2), ("half", 2), ("new", 2))
    left_out = taken_rows.form([*rows("half", 1), *rows("new", 0, 1)], step=4)
    assert left_out == ["old"]
    taken_rows.train(step=4)
    assert taken_rows.ended() == [("half", 4), ("new", 4)]


def test_rows_left_out_after_their_siblings_were_trained_end_the_group() -> None:
    taken_rows = taken(("a", 2), ("b", 1))
    taken_rows.form(rows("a", 0), step=1)
    taken_rows.train(step=1)
    assert taken_rows.form(rows("b", 0), step=2) == []
    assert taken_rows.ended() == [("a", 2)]


def test_what_the_ledger_has_is_forgotten_and_later_ends_are_not() -> None:
    taken_rows = taken(("a", 1), ("b", 1))
    for task in "ab":
        taken_rows.form(rows(task, 0), step=1)
    taken_rows.train(step=1)
    saved = taken_rows.ended()
    taken_rows.train(step=2)
    taken_rows.forget(saved)
    assert taken_rows.ended() == [("b", 2)]


def test_a_split_group_of_the_restored_checkpoint_stays_split_until_it_is_taken() -> None:
    taken_rows = TakenRows({"a": [0, 2]})
    assert taken_rows.split() == {"a": [0, 2]}
    taken_rows.take(TakenRow("a", 1), group=[1])
    assert taken_rows.split() == {"a": [0, 2]}
    taken_rows.form(rows("a", 1), step=3)
    taken_rows.train(step=3)
    assert (taken_rows.ended(), taken_rows.split()) == ([("a", 3)], {})


def test_a_restored_part_makes_a_group_trained_even_if_the_rest_is_left_out() -> None:
    taken_rows = TakenRows({"a": [0]})
    taken_rows.take(TakenRow("a", 1), group=[1])
    taken_rows.take(TakenRow("b", 0), group=[0])
    assert taken_rows.form(rows("b", 0), step=2) == []
    assert taken_rows.ended() == [("a", 2)]


@pytest.mark.parametrize("seed", range(20))
def test_every_row_ends_once_however_it_is_packed(seed: int) -> None:
    draw = random.Random(seed)
    sizes = {f"g{n}": draw.randint(1, 4) for n in range(8)}
    stream = [TakenRow(task, number) for task, size in sizes.items() for number in range(size)]
    taken_rows, trained, dismissed, step = TakenRows(), set(), [], 1
    batch: list[TakenRow] = []
    formed: list[list[TakenRow]] = []
    for row in stream:
        taken_rows.take(row, group=range(sizes[row.task]))
        if draw.random() < 0.2:
            continue
        batch.append(row)
        if draw.random() < 0.4:
            dismissed += taken_rows.form(batch, step=step)
            formed.append(batch)
            batch = []
        if len(formed) > 1:
            taken_rows.train(step=step)
            trained |= set(formed.pop(0))
            step += draw.randint(0, 1)
    while formed:
        taken_rows.train(step=step)
        trained |= set(formed.pop(0))
    ended = [task for task, _ in taken_rows.ended()]
    assert len(ended) == len(set(ended))
    assert not set(ended) & set(dismissed)
    assert {row.task for row in trained} == set(ended) | set(taken_rows.split())
    assert not {row.task for row in trained} & set(dismissed)
