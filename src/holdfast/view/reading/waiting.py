"""Finds out what unfinished trajectories wait for, and when attempts failed. It reads only a few
logs."""

import asyncio
from collections.abc import Sequence

from msgspec import Struct

from holdfast.journal.sql.journal import Journal
from holdfast.records.encoding.tokens import count
from holdfast.records.errors import JournalCorrupt
from holdfast.records.history import History
from holdfast.records.step import (
    AttemptFailed,
    AttemptStarted,
    CallRefused,
    EnvironmentStepped,
    Finished,
    Forked,
    Generated,
    Record,
    Refilled,
    Reopened,
    ScoringFailed,
    ToolIntent,
)
from holdfast.view.charts import Mark
from holdfast.view.reading.digest import Entry
from holdfast.view.rendering import run_url

MAX_RUNNING = 12
MAX_DISTURBED = 120
MAX_EVENTS = 600


class Waiting(Struct, frozen=True):
    """An unfinished trajectory, and what it does now."""

    entry: Entry
    what: str
    turns: int
    begun: float
    """When its last attempt began."""


async def waiting(journal: Journal, entries: Sequence[Entry]) -> list[Waiting]:
    """Returns the running trajectories that began first, and what each is waiting for."""
    # Among those under way, the first tasks began first.
    logs = await _logs(journal, [entry for entry in entries if entry.is_running][:MAX_RUNNING])
    rows = [_waiting(entry, History(records, settled=False)) for entry, records in logs]
    return sorted(rows, key=lambda row: row.begun)


async def _logs(journal: Journal, entries: Sequence[Entry]) -> list[tuple[Entry, list[Record]]]:
    logs = []
    for entry in entries:
        try:
            logs.append((entry, await journal.history(entry.id)))
        except JournalCorrupt:
            continue  # Its own page names the record.
        await asyncio.sleep(0)
    return logs


def _waiting(entry: Entry, history: History) -> Waiting:
    begun = history.attempts[-1].at if history.attempts else 0.0
    return Waiting(entry, what_now(history), len(history.generations), begun)


def what_now(history: History) -> str:
    """Returns what an unfinished trajectory is waiting for, according to its log: for example, "a
    reply"."""
    if history.finished is not None:
        return "its score"
    for path in sorted(history.unfinished):
        step = history.steps.get(path)
        if isinstance(step, ToolIntent) and path not in history.results:
            return f"tool {step.name}"
    if history.drafts:
        tokens = sum(count(draft.ids) for draft in history.drafts.values())
        return f"a reply, of which {tokens:,} tokens are durable"
    last = next(reversed(history.steps.values()), None)
    if isinstance(last, Generated):
        return "its own code, a tool or an environment, after a reply"
    if isinstance(last, EnvironmentStepped):
        return "a reply, after an answer of its environment"
    return "a reply" if last is not None else "its first reply"


async def events(journal: Journal, run: str, entries: Sequence[Entry]) -> list[Mark]:
    """Returns marks for failures, retries and forks, from the logs of some trajectories that had
    any."""
    disturbed = [entry for entry in entries if entry.failures or entry.retries or entry.forks]
    marks: list[Mark] = []
    for entry, records in await _logs(journal, disturbed[-MAX_DISTURBED:]):
        href = run_url(run, entry.ordinal, entry.sample)
        marks += _marks(entry, records, href)
    return sorted(marks, key=lambda mark: mark.x)[-MAX_EVENTS:]


def _marks(entry: Entry, records: Sequence[Record], href: str) -> list[Mark]:
    marks, attempts = [], 0
    for record in records:
        match record:
            case AttemptStarted():
                attempts += 1
                if attempts > 1:
                    text = f"{entry.name}: attempt {record.attempt} by {record.worker}"
                    marks.append(Mark(record.at, text, "attempt begins again", href))
            case AttemptFailed() | ScoringFailed():
                kind = f"{record.failure.cause.value} failure"
                marks.append(Mark(record.at, f"{entry.name}: {record.failure.line}", kind, href))
            case CallRefused():
                text = f"{entry.name}: {record.message}"
                marks.append(Mark(record.at, text, "call refused", href))
            case Forked() | Refilled() | Reopened():
                kind = type(record).__name__.lower()
                marks.append(Mark(record.at, f"{entry.name}: {record.reason}", kind, href))
            case Finished() if record.status.name == "FAILED":
                text = f"{entry.name}: {record.reason}"
                marks.append(Mark(record.at, text, "failed for good", href))
    return marks
