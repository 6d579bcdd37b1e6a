"""A system message before the messages of every task."""

from pathlib import Path

import pytest

from holdfast.records.errors import UsageError
from holdfast.records.message import system, user
from holdfast.records.task import Task
from holdfast.tasks.system import system_text, with_system

TASKS = [Task("a", (user("x"),)), Task("b", ())]


def test_each_task_begins_with_it() -> None:
    tasks = with_system(TASKS, "Be kind.")
    kind = system("Be kind.")
    assert [task.messages for task in tasks] == [(kind, user("x")), (kind,)]


def test_without_one_nothing_changes() -> None:
    assert with_system(TASKS, None) == TASKS


def test_a_task_with_its_own_is_named() -> None:
    with pytest.raises(UsageError, match="'c' has a system message"):
        with_system([*TASKS, Task("c", (system("own"), user("x")))], "Be kind.")


def test_a_file_may_hold_it(tmp_path: Path) -> None:
    (tmp_path / "s.txt").write_text("Be kind.\n")
    assert system_text(f"@{tmp_path / 's.txt'}") == "Be kind."
    assert system_text("plain") == "plain"
    with pytest.raises(UsageError, match="--system @none"):
        system_text("@none")
    (tmp_path / "b.txt").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="UTF-8"):
        system_text(f"@{tmp_path / 'b.txt'}")
