"""The page of one run: its progress, its rewards, its failures, and its trajectories."""

import time
from collections.abc import Mapping, Sequence

from aiohttp import web
from markupsafe import Markup
from msgspec import Struct

from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import RunProgress, RunRow
from holdfast.records.errors import JournalCorrupt
from holdfast.records.failure import fold_traceback
from holdfast.records.history import History
from holdfast.records.run import Run
from holdfast.view import charts
from holdfast.view.pages.context import Context, context_of
from holdfast.view.pages.runs import go_on, row_of, state_of
from holdfast.view.reading.digest import Entry, RunDigest
from holdfast.view.reading.listing import (
    ORDERS,
    STATES,
    filter_from,
    listed,
    whole_from,
)
from holdfast.view.reading.numbers import Numbers, RootCount, moving_mean, reward_bins
from holdfast.view.reading.waiting import events, waiting
from holdfast.view.rendering import run_url, with_query

MAX_CELLS = 640
"""The largest number of trajectories in one part of the heat map."""
MAX_ROOTS = 12
POINTS = 120


class RunPace(Struct, frozen=True):
    """The progress of a run, and its speed."""

    settled: int
    total: int
    per_second: float | None
    tokens_per_second: float | None
    left_seconds: float | None
    """The estimated seconds until the run is finished. None if the run has no speed now."""
    window: float

    @property
    def share(self) -> float:
        return self.settled / self.total if self.total else 0.0


async def run_page(request: web.Request) -> str:
    context = context_of(request)
    journal = await context.source.journal()
    run = await context.source.run(request.match_info["run"])
    row = await row_of(journal, run)
    progress = await journal.progress(run)
    state = state_of(row, progress)
    digest = await context.digests.read(journal, run)
    numbers = context.numbers(run, digest)
    entries = list(digest.entries())
    chosen = filter_from(request.query)
    await context.columns.read(journal, run, list(digest.groups))
    values = context.columns.by_name.get(chosen.column, {})
    listing = listed(entries, chosen, values)
    name = run.spec.name
    return context.render(
        "run.html",
        title=name,
        topic=run_url(name),
        run=run,
        row=row,
        state=state,
        command=go_on(run, state, context.source.where),
        numbers=numbers,
        progress=pace_of(row, progress, digest),
        is_cut=digest.is_cut,
        is_whole=digest.is_whole,
        filter=chosen,
        listing=listing,
        orders=ORDERS,
        states=STATES,
        columns=context.columns.by_name,
        columns_cut=context.columns.is_cut,
        breakdown=context.columns.breakdown(request.query.get("by", ""), entries),
        by=request.query.get("by", ""),
        heat=_heat(run, digest, request.query),
        waiting=await waiting(journal, entries) if row.live_workers else [],
        time_line=await _time_line(journal, name, entries),
        causes=await causes_of(journal, numbers),
        consumers=await journal.consumers(run),
        now=time.time(),
        **_charts(name, entries),
    )


def pace_of(row: RunRow, progress: RunProgress, digest: RunDigest) -> RunPace:
    settled, total, pace = progress.settled, progress.planned, digest.pace
    if pace is None or not row.live_workers:
        return RunPace(settled, total, None, None, None, 0.0)
    left = (total - settled) / pace.settled_per_second
    rates = (pace.settled_per_second, pace.tokens_per_second)
    return RunPace(settled, total, *rates, left, pace.seconds)


def _charts(run: str, entries: Sequence[Entry]) -> dict[str, object]:
    rewards = [entry.reward for entry in entries if entry.reward is not None]
    bins = reward_bins(rewards) if rewards else []
    linked = [
        (name, count, with_query(run_url(run), low=f"{low:.12g}", high=f"{high:.12g}"))
        for name, count, low, high in bins
    ]
    over_time = moving_mean(rewards, points=min(POINTS, max(len(rewards) // 8, 1)))
    axis = "number of the trajectory"
    line = charts.line_chart({"mean reward": over_time}, title="Reward over the run", axis=axis)
    return {
        "reward_line": line if len(over_time) > 1 else None,
        "reward_bars": charts.bar_chart(linked, title="Distribution of rewards") if bins else None,
        "reward_table": [(name, count) for name, count, _, _ in bins],
    }


class Heat(Struct, frozen=True):
    """One part of the map of tasks and samples."""

    picture: Markup
    first: int
    last: int
    tasks: int
    part: int
    parts: int


def _heat(run: Run, digest: RunDigest, query: Mapping[str, str]) -> Heat | None:
    """Returns the part of the map that the address names, or the first unfinished part."""
    ordinals = sorted(digest.groups)
    if not ordinals:
        return None
    each = max(1, min(MAX_CELLS // max(run.spec.samples, 1), 60))
    parts = -(-len(ordinals) // each)
    groups = (digest.groups[ordinal] for ordinal in ordinals)
    is_open = (at for at, group in enumerate(groups) if not all(e.settled for e in group))
    part = min(whole_from(query, "heat", next(is_open, 0) // each), parts - 1)
    some = ordinals[part * each : (part + 1) * each]
    entries = [entry for ordinal in some for entry in digest.groups[ordinal][:MAX_CELLS]]
    rewards = [entry.reward for entry in digest.entries() if entry.reward is not None]
    low, high = (min(rewards), max(rewards)) if rewards else (0.0, 1.0)
    place = {ordinal: at for at, ordinal in enumerate(some)}
    cells = [_cell(run, entry, place[entry.ordinal], low, high) for entry in entries]
    text = "A column for each task, a row for each sample"
    picture = charts.heat_map(cells, title="Tasks and samples", text=text)
    first = part * each
    return Heat(picture, first + 1, first + len(some), len(ordinals), part, parts)


def _cell(run: Run, entry: Entry, column: int, low: float, high: float) -> charts.Cell:
    state = entry.status.name.lower()
    kind = state if entry.reward is None else charts.level(entry.reward, low, high)
    if state == "truncated":
        kind += " truncated" if entry.reward is not None else " cut"
    reward = "" if entry.reward is None else f", reward {entry.reward:.4g}"
    label = f"{entry.name}: {state}{reward}"
    href = run_url(run.spec.name, entry.ordinal, entry.sample)
    return charts.Cell(column, entry.sample, kind, label, href)


async def _time_line(journal: Journal, run: str, entries: Sequence[Entry]) -> Mapping[str, object]:
    marks = await events(journal, run, entries)
    if not marks:
        return {"marks": [], "picture": None}
    start, end = marks[0].x, marks[-1].x
    title = "Failures, retries and forks over time"
    picture = charts.time_line(marks, start=start, end=end, title=title)
    return {"marks": marks, "picture": picture, "start": start}


class ShownCause(Struct, frozen=True):
    """The failures that have the same root, and the traceback of one of them."""

    root: RootCount
    traceback: str


async def causes_of(journal: Journal, numbers: Numbers) -> list[ShownCause]:
    """Returns the most frequent roots of failures, each with the traceback of its first example."""
    return [
        ShownCause(root, await _traceback(journal, root) if root.examples else "")
        for root in numbers.roots[:MAX_ROOTS]
    ]


async def _traceback(journal: Journal, root: RootCount) -> str:
    try:
        history = History(await journal.history(root.examples[0].id))
    except JournalCorrupt:
        return ""
    failures = (*history.failures, *history.close_failures, *history.scoring_failures)
    alike = (each for each in failures if (each.phase, each.root) == (root.phase, root.root))
    return next((fold_traceback(failure.traceback) for failure in alike), "")


async def look_at_run(context: Context, name: str) -> object:
    """Returns a value that changes whenever the page of the run changes."""
    journal = await context.source.journal()
    run = await context.source.run(name)
    digest = await context.digests.read(journal, run)
    row = await row_of(journal, run)
    return (digest.version, row.settled, row.live_workers, row.sealed, run.spec.tags)
