"""Searches the texts of trajectories, in parts of bounded time. Each part continues where the
previous part ended."""

import asyncio
import time
from collections.abc import Iterator, Sequence

from msgspec import Struct

from holdfast.journal.sql.journal import Journal
from holdfast.records.errors import JournalCorrupt
from holdfast.records.message import Message
from holdfast.records.step import (
    AttemptFailed,
    EnvironmentStepped,
    Finished,
    Generated,
    Record,
    Scored,
    ScoringFailed,
    ToolIntent,
    ToolResult,
)
from holdfast.records.task import Task
from holdfast.view.reading.digest import Entry

PART_SECONDS = 1.0
MAX_HITS = 60
AROUND = 120
PLACES = ("prompts", "replies", "reasoning", "tools", "environments", "failures", "scores")


class Hit(Struct, frozen=True):
    """One place where the text was found."""

    entry: Entry
    place: str
    path: str
    before: str
    text: str
    after: str


class SearchPart(Struct, frozen=True):
    """The places that were found in one part of the run."""

    hits: list[Hit]
    start: int
    end: int
    """The index of the trajectory at which the next part begins."""


async def search(
    journal: Journal,
    entries: Sequence[Entry],
    tasks: dict[int, Task],
    *,
    text: str,
    place: str,
    start: int,
) -> SearchPart:
    """Searches the trajectories from index `start` on. Returns only the first place in each
    trajectory."""
    deadline = time.monotonic() + PART_SECONDS
    hits: list[Hit] = []
    at, wanted = start, text.lower()
    while at < len(entries) and len(hits) < MAX_HITS and time.monotonic() < deadline:
        entry = entries[at]
        at += 1
        if not entry.is_begun:
            continue
        try:
            records = await journal.history(entry.id)
        except JournalCorrupt:
            continue  # Its own page names the record.
        task = tasks.get(entry.ordinal)
        hit = await asyncio.to_thread(_first, entry, task, records, wanted, place)
        hits += [hit] if hit else []
    return SearchPart(hits, start, at)


def _first(
    entry: Entry, task: Task | None, records: Sequence[Record], wanted: str, place: str
) -> Hit | None:
    for where, path, text in _texts(task, records):
        if place and where != place:
            continue
        # Lowering a letter may change the length: then the place is looked up in the lowered text.
        lowered = text.lower()
        at = lowered.find(wanted)
        if at >= 0:
            whole = text if len(text) == len(lowered) else lowered
            end = at + len(wanted)
            before = whole[max(0, at - AROUND) : at]
            return Hit(entry, where, path, before, whole[at:end], whole[end : end + AROUND])
    return None


def _texts(task: Task | None, records: Sequence[Record]) -> Iterator[tuple[str, str, str]]:
    """Yields every text of a trajectory with its place, beginning with the task. Texts that a fork
    or a refill replaced are included."""
    for message in task.messages if task is not None else ():
        yield "prompts", "", message.text
    for record in records:
        if isinstance(record, Generated):
            yield from _of_reply(record)
        else:
            yield from _of_record(record)


def _of_reply(record: Generated) -> Iterator[tuple[str, str, str]]:
    for each in record.added:
        if isinstance(each, Message):
            yield "prompts", record.path, each.text
    yield "replies", record.path, record.message.text
    yield "reasoning", record.path, record.message.reasoning or ""
    for call in record.message.tool_calls:
        yield "tools", record.path, f"{call.name}({call.arguments})"


def _of_record(record: Record) -> Iterator[tuple[str, str, str]]:
    match record:
        case ToolIntent():
            yield "tools", record.path, f"{record.name}({record.arguments})"
        case ToolResult():
            yield "tools", record.path, f"{record.content}\n{record.error}"
        case EnvironmentStepped():
            yield "environments", record.path, f"{record.action}\n{record.observation}"
        case AttemptFailed() | ScoringFailed():
            yield "failures", record.failure.step, record.failure.text
        case Finished():
            yield "failures", "", record.reason
        case Scored():
            yield "scores", "", "\n".join(record.reasons.values())
        case _:
            return
