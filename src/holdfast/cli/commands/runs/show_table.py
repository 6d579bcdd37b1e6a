"""Lists the trajectories of a run, one line each, with their outcomes."""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from holdfast.cli.terminal.colours import paint
from holdfast.cli.terminal.text import visible_name
from holdfast.engine.report import many
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import TrajectoryRow
from holdfast.records.errors import JournalCorrupt
from holdfast.records.failure import shortened
from holdfast.records.run import Run
from holdfast.records.samples.summary import Summary
from holdfast.records.trajectory import Status

MAX_NAME_WIDTH = 40
"""The greatest width of the column of names. A longer name makes its line wider and is not cut,
because users copy names from here to `holdfast show`."""
MAX_REASON_LENGTH = 80
NOBODY = "nobody works on it"


class Listed(Struct, frozen=True):
    """One trajectory of a run and its outcome."""

    row: TrajectoryRow
    reward: float | None
    reason: str
    """Why the trajectory was truncated, failed or cannot be read, or "" if it has no such
    problem."""


class RunListing:
    """Counts the trajectories of a run that have a status, and keeps the first of them."""

    def __init__(self, *, status: str | None, limit: int | None):
        """`status` None accepts any status. `limit` None keeps all trajectories."""
        self.rows: list[Listed] = []
        self.count = 0
        self.status = status
        self._limit = limit

    def take(self, row: TrajectoryRow, summary: Summary | JournalCorrupt) -> None:
        if self.status not in (None, row.status.name):
            return
        self.count += 1
        if self._limit is None or len(self.rows) < self._limit:
            self.rows.append(_listed(row, summary))


def _listed(row: TrajectoryRow, summary: Summary | JournalCorrupt) -> Listed:
    if not row.status.is_over:
        return Listed(row, None, "")
    if isinstance(summary, JournalCorrupt):
        return Listed(row, None, "corrupt")  # The report gives the details.
    return Listed(row, summary.reward, summary.reason)


def as_fields(trajectory: Listed) -> dict[str, object]:
    """Returns the trajectory as fields for scripts. Its status is given by name instead of by the
    journal's number."""
    row: dict[str, object] = msgspec.to_builtins(trajectory.row)
    return row | {
        "status": trajectory.row.status.name,
        "reward": trajectory.reward,
        "reason": trajectory.reason,
    }


async def lines(journal: Journal, run: Run, trajectories: Sequence[Listed]) -> list[str]:
    """Returns one line for each trajectory, in columns. `holdfast show` accepts the names in the
    first column."""
    columns = [
        _column([short(trajectory.row) for trajectory in trajectories], at_most=MAX_NAME_WIDTH),
        _column([trajectory.row.status.name for trajectory in trajectories]),
        _column([_reward(trajectory) for trajectory in trajectories]),
        _column([many(trajectory.row.records, "record") for trajectory in trajectories]),
        await _remarks(journal, run, trajectories),
    ]
    columns[1] = [
        paint(cell, trajectory.row.status.name)
        for cell, trajectory in zip(columns[1], trajectories, strict=True)
    ]
    return ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]


def _column(texts: Sequence[str], *, at_most: int | None = None) -> list[str]:
    """Pads texts to the same width on a terminal, where some characters take two cells."""
    from rich.cells import cell_len

    widths = [cell_len(text) for text in texts]
    longest = max(widths, default=0)
    wide = longest if at_most is None else min(longest, at_most)
    return [text + " " * (wide - width) for text, width in zip(texts, widths, strict=True)]


def _reward(trajectory: Listed) -> str:
    if trajectory.reward is not None:
        return f"reward {trajectory.reward:g}"
    return "no reward" if trajectory.row.status.is_over else ""


async def _remarks(journal: Journal, run: Run, trajectories: Sequence[Listed]) -> list[str]:
    is_open = any(not trajectory.row.settled for trajectory in trajectories)
    live = await _live_workers(journal, run) if is_open else ()
    return [_remark(trajectory, live) for trajectory in trajectories]


async def _live_workers(journal: Journal, run: Run) -> Sequence[str]:
    return next(
        listed_run.live_workers
        for listed_run in await journal.runs()
        if listed_run.name == run.spec.name
    )


def _remark(trajectory: Listed, live: Sequence[str]) -> str:
    """Returns the remark on a trajectory. The worker is named only if it is alive, so that users do
    not wait for a dead worker."""
    row = trajectory.row
    owner = row.owner if row.owner in live else ""
    is_left = row.status is Status.RUNNING and not owner and not row.resting
    remarks = [
        "resting" if row.resting else "",
        visible_name(shortened(trajectory.reason, MAX_REASON_LENGTH)),
        visible_name(owner),
        NOBODY if is_left else "",
    ]
    return ", ".join(remark for remark in remarks if remark)


def short(row: TrajectoryRow) -> str:
    """Returns the name of a trajectory as it is listed, on one line."""
    return f"{visible_name(row.key.task)}/{row.key.sample}"
