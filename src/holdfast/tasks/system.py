"""Puts a system message before the messages of every task."""

from collections.abc import Sequence
from pathlib import Path

from msgspec import structs

from holdfast.records.encoding.text_files import read_text_file
from holdfast.records.errors import UsageError
from holdfast.records.message import Role, system
from holdfast.records.task import Task


def system_text(text: str | None) -> str | None:
    """Returns the text. For `@FILE`, returns the text of the file."""
    if text is None or not text.startswith("@"):
        return text
    return read_text_file(Path(text[1:]), f"--system {text}").rstrip("\n")


def with_system(tasks: Sequence[Task], text: str | None) -> list[Task]:
    """Returns the tasks with the system message. Raises `UsageError` for a task that already
    has a system message, because it is unclear which one counts.
    """
    if text is None:
        return list(tasks)
    for task in tasks:
        if any(message.role is Role.SYSTEM for message in task.messages):
            raise UsageError(
                f"task {task.id!r} has a system message already: leave --system out, or take it "
                "out of the tasks"
            )
    return [structs.replace(task, messages=(system(text), *task.messages)) for task in tasks]
