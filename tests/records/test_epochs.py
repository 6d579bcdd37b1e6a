"""The order of rows is a pure function, and a row of a later epoch is a task of its own."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.records.epochs import EpochStream, row_order, task_in_epoch
from holdfast.records.errors import UsageError
from holdfast.records.run import seed_for
from support.records import make_tasks


@given(rows=st.integers(0, 200), seed=st.integers(-5, 5), epoch=st.integers(1, 9))
def test_each_epoch_has_each_row_once(rows: int, seed: int, epoch: int) -> None:
    order = row_order(rows, seed=seed, epoch=epoch)
    assert sorted(order) == list(range(rows))


def test_the_order_is_the_same_in_every_process_and_another_in_each_epoch() -> None:
    expected = [5, 4, 3, 1, 0, 2]
    code = "from holdfast.records.epochs import row_order; print(row_order(6, seed=1, epoch=1))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(row_order(6, seed=1, epoch=1)) == str(expected)
    orders = {tuple(row_order(6, seed=seed, epoch=e)) for seed in range(3) for e in range(1, 4)}
    assert len(orders) == 9


@given(start=st.integers(0, 30), count=st.integers(0, 30))
def test_where_drawing_begins_changes_nothing(start: int, count: int) -> None:
    tasks = make_tasks(*"abcde")
    whole = EpochStream(tasks, seed=7).draw(0, 60)
    assert EpochStream(tasks, seed=7).draw(start, count) == whole[start : start + count]
    assert len({task.id for task in whole}) == 60


def test_a_row_that_is_drawn_again_is_a_task_of_its_own() -> None:
    names = [
        task.id for task in EpochStream(make_tasks("a", "b"), seed=0, shuffle=False).draw(0, 6)
    ]
    assert names == ["a", "b", "a@2", "b@2", "a@3", "b@3"]
    seeds = {seed_for(1, task=name, sample=0, life=0, path="0") for name in names}
    assert len(seeds) == 6


def test_ids_that_a_later_epoch_would_take_are_refused() -> None:
    with pytest.raises(UsageError, match="'a@2'"):
        EpochStream(make_tasks("a", "a@2"), seed=0)
    EpochStream(make_tasks("b", "a@2"), seed=0)
    with pytest.raises(UsageError, match="no epochs"):
        EpochStream([], seed=0)
    (task,) = make_tasks("x" * 199)
    with pytest.raises(UsageError, match="shorten"):
        task_in_epoch(task, 2)
