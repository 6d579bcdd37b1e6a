"""Builds the table of rows for a terminal, with the input, target and answer of each sample, by
task."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

import msgspec
from msgspec import Struct

from holdfast.engine.report import escape_text
from holdfast.evaluation.report.preview import Preview, preview_of
from holdfast.journal.rows import history_of_row
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import TrajectoryRow
from holdfast.records.encoding.redaction import redact
from holdfast.records.errors import JournalCorrupt
from holdfast.records.history import History
from holdfast.records.run import Run
from holdfast.records.samples.summary import Summary
from holdfast.records.task import Task
from holdfast.records.view import TrajectoryView

MAX_NAME = 24
MIN_TEXT = 8
"""The smallest width of an input, target or answer, however narrow the terminal is."""
FALLBACK = (100, 24)
"""The size of an output that is not a terminal, such as a file or a pipe."""
_GAP = "  "
_HEAD = ("row", "status", "reward", "input", "target", "answer")
_Cells = tuple[str, ...]
Paint = Callable[[str, str], str]
"""Returns a text in the colour of a status."""


class ReportRow(Struct, frozen=True):
    """One sample of a task, with the beginnings of its texts."""

    task: str
    sample: int
    status: str
    reward: float | None
    preview: Preview
    reason: str = ""
    """Why a scorer gave no reward."""

    def as_fields(self) -> dict[str, object]:
        """Returns the row's fields, for scripts."""
        numbers: dict[str, object] = msgspec.structs.asdict(self)
        del numbers["preview"]
        return numbers | msgspec.structs.asdict(self.preview)


Rewards = Mapping[str, Sequence[float | None]]
"""The rewards of all samples of each task, including samples that are not listed."""


class RowCollector:
    """Collects the trajectories of a run, and keeps the first `limit` of them as rows."""

    def __init__(self, tasks: Sequence[Task], *, limit: int | None = None):
        self._tasks = tasks
        self._limit = limit
        self._left = 0
        self._rewards: dict[str, list[float | None]] = {}
        self._listed: list[TrajectoryRow] = []
        self.rows: list[ReportRow] = []

    def take(self, row: TrajectoryRow, summary: Summary) -> None:
        self._rewards.setdefault(row.key.task, []).append(summary.reward)
        if self._limit is not None and len(self._listed) >= self._limit:
            self._left += 1
        else:
            self._listed.append(row)

    async def read(self, journal: Journal) -> list[str]:
        """Reads the logs of the listed rows, since only logs have texts. Returns the rows that
        cannot be read, with the reason."""
        corrupt = []
        for row in self._listed:
            try:
                history = history_of_row(row, await journal.history(row.id))
            except JournalCorrupt as error:
                corrupt.append(f"{row.key}: {error}")
            else:
                self.rows.append(_report_row(row, self._tasks[row.ordinal], history))
        return corrupt

    def lines(self, *, more: str, paint: Paint | None = None) -> list[str]:
        """Returns the table, as wide as the terminal. `more` tells how to see the rows that are
        left out."""
        return _table(self.rows, self._rewards, left=self._left, more=more, paint=paint)


async def first_rows(
    journal: Journal, run: Run, rewards: Rewards, *, limit: int, more: str
) -> list[str]:
    """Returns the table of the run's first rows, as wide as the terminal. Other rows' logs are not
    read."""
    listed = [row for row in await journal.trajectories(run) if not row.resting]
    tasks = await journal.tasks(run)
    rows = [
        _report_row(
            row,
            tasks[row.ordinal],
            history_of_row(row, await journal.history(row.id)),
        )
        for row in listed[:limit]
    ]
    left = len(listed) - len(rows)
    return _table(rows, rewards, left=left, more=more)


def _report_row(row: TrajectoryRow, task: Task, history: History) -> ReportRow:
    preview = preview_of(TrajectoryView(row.key, task, history))
    status, reward = row.status.name, history.reward
    return ReportRow(row.key.task, row.key.sample, status, reward, preview, _reason(history))


def _table(
    rows: Sequence[ReportRow], rewards: Rewards, *, left: int, more: str, paint: Paint | None = None
) -> list[str]:
    width = shutil.get_terminal_size(FALLBACK).columns
    rest = [f"… and {left} more ({more})"] if left else []
    return [*table_lines(rows, rewards, width=width, paint=paint), *rest]


def _reason(history: History) -> str:
    """Returns why the scorer gave no score, or ""."""
    if history.scored is None or history.scored.reward is not None:
        return ""
    return "; ".join(history.scored.reasons_of_reward)


def table_lines(
    rows: Sequence[ReportRow], rewards: Rewards, *, width: int, paint: Paint | None = None
) -> list[str]:
    """Returns the table in columns that fit into `width` cells. Samples of one task stand below a
    line with their mean, input and target. A line below a row says why the row has no score."""
    if not rows:
        return []
    table: list[_Cells] = [_HEAD]
    for task, group in groupby(rows, key=lambda row: row.task):
        table += _group(list(group), rewards[task])
    why = {_numbers(row)[0]: row.reason for row in rows if row.reason}
    lines = []
    for cells, line in zip(table, _aligned(table, width, paint), strict=True):
        lines.append(line)
        if reason := why.get(cells[0]):
            lines.append(_fitted(f"{_GAP}no score: {_safe(reason)}", width).rstrip())
    return lines


def _group(rows: list[ReportRow], rewards: Sequence[float | None]) -> list[_Cells]:
    first = rows[0]
    if len(rewards) == 1:
        return [(*_numbers(first), *_texts(first))]
    known = [reward for reward in rewards if reward is not None]
    mean = f"mean {sum(known) / len(known):.4g}" if known else "none"
    question, target, _ = _texts(first)
    head = (_safe(first.task), f"{len(rewards)} samples", mean, question, target, "")
    return [head, *((*_numbers(row), "", "", _texts(row)[2]) for row in rows)]


def _numbers(row: ReportRow) -> _Cells:
    reward = "none" if row.reward is None else f"{row.reward:.4g}"
    return f"{_safe(row.task)}/{row.sample}", row.status, reward


def _texts(row: ReportRow) -> _Cells:
    return _safe(row.preview.input), _safe(row.preview.target), _safe(row.preview.answer)


def _safe(text: str) -> str:
    return escape_text(redact(text))


def _aligned(rows: Sequence[_Cells], width: int, paint: Paint | None) -> list[str]:
    widths = _widths(rows, width)
    lines = []
    for row in rows:
        cells = [_fitted(cell, wide) for cell, wide in zip(row, widths, strict=True)]
        cells[1] = cells[1] if paint is None else paint(cells[1], row[1])
        lines.append(_GAP.join(cells).rstrip())
    return lines


def _widths(rows: Sequence[_Cells], width: int) -> list[int]:
    """Returns the widths of the columns. A column is as wide as its longest cell, if that fits.
    Texts share the remaining width, the shortest first."""
    from rich.cells import cell_len

    longest = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    widths = [min(longest[0], MAX_NAME), *longest[1:]]
    left = width - sum(widths[:3]) - len(_GAP) * (len(widths) - 1)
    texts = sorted(range(3, len(widths)), key=lambda column: widths[column])
    for done, column in enumerate(texts):
        share = max(MIN_TEXT, left // (len(texts) - done))
        widths[column] = min(widths[column], share)
        left -= widths[column]
    return widths


def _fitted(text: str, width: int) -> str:
    """Returns the text, cut or padded to `width` cells. Some characters take two cells."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return f"{set_cell_size(text, width - 1)}…"
