"""Listing: the trajectories of a run, one line each, with what became of them.

The journal's own listing knows neither rewards nor reasons: each history is read for them, and
only one of them is in memory at a time.
"""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from holdfast.cli.terminal.text import visible_name
from holdfast.engine.export.row_status import last_failure
from holdfast.engine.report import many
from holdfast.journal.journal import Journal, TrajectoryRow
from holdfast.records.errors import JournalCorrupt
from holdfast.records.failure import shortened
from holdfast.records.history import History
from holdfast.records.run import Run
from holdfast.records.trajectory import Status

WIDEST = 40
"""Names that are longer stand out of their column; they are not cut, since `show` takes them."""
REASON = 80
NOBODY = "nobody works on it"


class Listed(Struct, frozen=True):
    """One trajectory of a run, and how it ended."""

    row: TrajectoryRow
    reward: float | None
    reason: str
    """Why it was truncated or failed, or cannot be read; "" otherwise."""


async def listed(journal: Journal, rows: Sequence[TrajectoryRow]) -> list[Listed]:
    return [await _listed(journal, row) for row in rows]


async def _listed(journal: Journal, row: TrajectoryRow) -> Listed:
    if not row.status.is_over:
        return Listed(row, None, "")
    try:
        history = History(await journal.history(row.id))
    except JournalCorrupt:
        return Listed(row, None, "corrupt")  # The report says more of it.
    return Listed(row, history.reward, _reason(history))


def _reason(history: History) -> str:
    if history.finished is None:
        return ""
    failed = last_failure(history) if history.status is Status.FAILED else None
    return history.finished.reason if failed is None else failed.line


def told(one: Listed) -> dict[str, object]:
    """For scripts: with the names that people know, not the journal's numbers."""
    row: dict[str, object] = msgspec.to_builtins(one.row)
    return row | {"status": one.row.status.name, "reward": one.reward, "reason": one.reason}


async def lines(journal: Journal, run: Run, found: Sequence[Listed]) -> list[str]:
    """In columns; the names are those that `show` takes."""
    columns = [
        _column([short(one.row) for one in found], at_most=WIDEST),
        _column([one.row.status.name for one in found]),
        _column([_reward(one) for one in found]),
        _column([many(one.row.records, "record") for one in found]),
        await _remarks(journal, run, found),
    ]
    return ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]


def _column(texts: Sequence[str], *, at_most: int | None = None) -> list[str]:
    longest = max(map(len, texts), default=0)
    wide = longest if at_most is None else min(longest, at_most)
    return [f"{text:<{wide}}" for text in texts]


def _reward(one: Listed) -> str:
    if one.reward is not None:
        return f"reward {one.reward:g}"
    return "no reward" if one.row.status.is_over else ""


async def _remarks(journal: Journal, run: Run, found: Sequence[Listed]) -> list[str]:
    is_open = any(not one.row.settled for one in found)
    live = await _live_workers(journal, run) if is_open else ()
    return [_remark(one, live) for one in found]


async def _live_workers(journal: Journal, run: Run) -> Sequence[str]:
    return next(one.live_workers for one in await journal.runs() if one.name == run.spec.name)


def _remark(one: Listed, live: Sequence[str]) -> str:
    """A worker that died left its name; whoever reads it would wait for it."""
    row = one.row
    owner = row.owner if row.owner in live else ""
    is_left = row.status is Status.RUNNING and not owner and not row.resting
    words = [
        "resting" if row.resting else "",
        visible_name(shortened(one.reason, REASON)),
        owner,
        NOBODY if is_left else "",
    ]
    return ", ".join(word for word in words if word)


def short(row: TrajectoryRow) -> str:
    """As it is listed: on one line."""
    return f"{visible_name(row.key.task)}/{row.key.sample}"
