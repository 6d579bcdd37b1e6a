"""Reads tasks from any source, for the command line, `holdfast.run` and training alike."""

import asyncio
from collections.abc import AsyncIterable
from itertools import islice
from pathlib import Path, PurePath

from holdfast.records.encoding.bounds import check_whole
from holdfast.records.encoding.near_names import nearest
from holdfast.records.errors import UsageError
from holdfast.records.task import ParsedRow, Task, is_conversation, parse_row, with_ids
from holdfast.rollout.threads.blocking import run_blocking
from holdfast.tasks.columns import Columns, check_columns, with_fields
from holdfast.tasks.files import FileRecord
from holdfast.tasks.hugging_face import is_hub_name
from holdfast.tasks.sources import Rows, is_reference, open_source, take

MANY = 1000
"""The most files of a folder that are compared with a misspelled name."""


def read_tasks(
    source: object, *, limit: int | None = None, columns: Columns | None = None
) -> list[Task]:
    """Reads tasks from a file (JSONL, JSON, CSV, Parquet, Arrow), a folder, a URL, `hf:NAME:SPLIT`,
    `FILE.py:FUNCTION`, a function, a generator, a table, or a list.

    `limit` reads only the first tasks. `columns` says which column of the source is which field of
    a task: `{"prompt": "question", "ground_truth": "answer"}`. `UsageError` names the first bad
    row.
    """
    return run_blocking(lambda: load_tasks(source, limit=limit, columns=columns))


async def load_tasks(
    source: object, *, limit: int | None = None, columns: Columns | None = None
) -> list[Task]:
    """Reads tasks like `read_tasks`, in a running event loop.

    Files are read whole, whatever the limit is. So a bad row is reported now, and not by a later
    command with a higher limit.
    """
    _, tasks = await _load(source, limit, columns)
    return tasks if limit is None else tasks[:limit]


def place_of(
    task: Task, source: object, *, limit: int | None = None, columns: Columns | None = None
) -> str:
    """Returns where a task stands in its source, with its id: `tasks.jsonl:3 (sum-2)`."""
    rows, tasks = run_blocking(lambda: _load(source, limit, columns))
    places = zip(rows, tasks, strict=True)
    where = next((row.where for row, each in places if each.id == task.id), "task")
    return f"{where} ({task.id})"


async def _load(
    source: object, limit: int | None, columns: Columns | None
) -> tuple[list[ParsedRow], list[Task]]:
    renamed = check_columns(columns or {})
    if limit is not None:
        check_whole("limit", limit, least=1)
    name = str(source) if isinstance(source, str | PurePath) else "tasks"
    rows = [
        row if isinstance(row, ParsedRow) else _parse(row, renamed, where=f"task {number}")
        for number, row in enumerate(await _rows_of(source, limit, renamed), 1)
    ]
    if not rows:
        raise UsageError(_no_tasks(source))
    is_lines = rows[0].where.startswith(f"{name}:")
    unit = "lines" if is_lines else "tasks" if name == "tasks" else "rows"
    return rows, with_ids(rows, where=name, unit=unit)


def _parse(row: object, columns: Columns, *, where: str) -> ParsedRow:
    where, fields = with_fields(row, columns, where=where)
    return parse_row(fields, where=where)


def _no_tasks(source: object) -> str:
    if not isinstance(source, str | PurePath):
        return "tasks is empty; give one task or more"
    return (
        f"{source} has no tasks; a task file has one JSON object per line, or a line that names "
        "the columns and one line per task (.csv)"
    )


async def _rows_of(source: object, limit: int | None, columns: Columns) -> list[object]:
    """Returns the rows of the source. Rows of files are parsed already."""
    if isinstance(source, str | PurePath):
        return await _referenced(source, limit, columns)
    if isinstance(source, list | tuple) and not is_conversation(source):
        rows: list[object] = []
        for row in source:
            rows += await _referenced(row, None, columns) if is_reference(row) else [row]
        return rows
    return await take(await open_source(source, what="list of tasks"), limit)


async def _referenced(source: object, limit: int | None, columns: Columns) -> list[object]:
    rows: Rows = await open_source(source, what="task file", hint=_hint(source))
    if isinstance(rows, AsyncIterable):  # A function of the user, which may yield without end.
        return await take(rows, limit)
    most = limit if is_hub_name(source) else None

    def parsed() -> list[object]:
        # Parsed one by one, because a million rows in JSON's types take more memory than the tasks.
        return [
            _parse(row, columns, where="") if isinstance(row, FileRecord) else row
            for row in islice(rows, most)
        ]

    # Read in a thread, so that the loop is not blocked.
    return await asyncio.to_thread(parsed)


def _hint(source: object) -> str:
    """Returns a suggestion for the error about a file that does not exist, or "" without a
    suggestion."""
    text = str(source)
    path = Path(text).expanduser()
    if " " in text and not path.suffix:
        return '; a text is a path: a prompt is one of a list, tasks=["…"]'
    try:
        siblings = sorted(other.name for other in islice(path.parent.iterdir(), MANY))
    except (OSError, ValueError):
        return ""
    near = nearest(path.name, siblings, alike=0.8)
    return f"; is {path.with_name(near)} meant?" if near else ""
