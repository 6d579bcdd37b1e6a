"""The page that lists the runs. For a large journal, the first page reads no trajectories. It shows
means and tokens when they are known."""

import shlex
import time
from collections.abc import Mapping, Sequence

from aiohttp import web
from msgspec import Struct

from holdfast.engine.options import JOURNAL
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import RunProgress, RunRow
from holdfast.records.encoding.redaction import redact
from holdfast.records.run import Run
from holdfast.training.report import HELD_OUT
from holdfast.view.pages.context import Context, context_of
from holdfast.view.reading.listing import whole_from
from holdfast.view.reading.numbers import Numbers

PAGE = 50
READ_AT_ONCE = 4_000
"""If the listed runs together have no more trajectories than this, all of them are read before the
list is shown."""
STATES = ("working", "stopped", "open", "finished")


class ListedRun(Struct, frozen=True):
    """One run in the list."""

    row: RunRow
    progress: RunProgress
    run: Run
    numbers: Numbers | None
    """The run's numbers. None before its trajectories were read."""
    state: str
    command: str
    """The command that continues the run; "" if nothing is left to do."""
    evaluations: int

    @property
    def total(self) -> int:
        return self.progress.planned

    @property
    def failed(self) -> int:
        return self.progress.failed


async def runs_page(request: web.Request) -> str:
    context, query = context_of(request), request.query
    journal = await context.source.journal()
    rows = await journal.runs(counted=False)
    names = {row.name for row in rows}
    chosen = [row for row in rows if query.get("all") or not _training_of(row.name, names)]
    planned = sum(row.tasks * row.samples for row in chosen)
    listed = []
    for row in reversed(chosen):
        run = await context.source.run(row.name)
        if planned <= READ_AT_ONCE:
            await context.digests.read(journal, run)
        each = await _listed(context, row, run, rows)
        if _matches(each, query):
            listed.append(each)
    listed = _sorted(listed, query.get("order", ""))
    pages = max(1, -(-len(listed) // PAGE))
    page = min(whole_from(query, "page"), pages - 1)
    return context.render(
        "runs.html",
        title="Runs",
        topic="runs",
        runs=listed[page * PAGE : (page + 1) * PAGE],
        count=len(listed),
        total=len(rows),
        hidden=len(rows) - len(chosen),
        page=page,
        pages=pages,
        query={name: query.get(name, "") for name in ("text", "state", "tag", "order", "all")},
        tags=sorted({tag for each in listed for tag in each.run.spec.tags}),
        states=STATES,
        orders=ORDERS,
        now=time.time(),
    )


def _training_of(name: str, names: set[str]) -> bool:
    return name.rpartition(HELD_OUT)[0] in names


async def _listed(context: Context, row: RunRow, run: Run, rows: Sequence[RunRow]) -> ListedRun:
    digest = context.digests.known(run)
    progress = await (await context.source.journal()).progress(run)
    state = state_of(row, progress)
    evaluations = sum(each.name.startswith(f"{row.name}{HELD_OUT}") for each in rows)
    numbers = None if digest is None else context.numbers(run, digest)
    command = go_on(run, state, context.source.where)
    return ListedRun(row, progress, run, numbers, state, command, evaluations)


def state_of(row: RunRow, progress: RunProgress) -> str:
    """Returns the state of a run in one word: working, stopped, open or finished."""
    if row.live_workers:
        return "working"
    if progress.settled < progress.planned:
        return "stopped"
    return "finished" if row.sealed else "open"


def go_on(run: Run, state: str, journal: str) -> str:
    """Returns the command that continues a run. Returns "" if no command is recorded, the run is
    finished, or a process works on it."""
    if run.spec.command is None or state in ("working", "finished"):
        return ""
    words = ["holdfast", "resume", run.spec.name]
    if journal != JOURNAL.default:
        words += ["--journal", redact(journal)]
    return shlex.join(words)


def _matches(each: ListedRun, query: Mapping[str, str]) -> bool:
    text, tag, state = (query.get(name, "") for name in ("text", "tag", "state"))
    if text not in each.row.name and text not in each.run.spec.model:
        return False
    return (not tag or tag in each.run.spec.tags) and state in ("", each.state)


def _reward(each: ListedRun) -> float:
    mean = None if each.numbers is None else each.numbers.mean
    return float("-inf") if mean is None else mean


def _sorted(listed: list[ListedRun], order: str) -> list[ListedRun]:
    if order == "name":
        return sorted(listed, key=lambda each: each.row.name)
    if order == "mean reward":
        return sorted(listed, key=_reward, reverse=True)
    if order == "failures":
        return sorted(listed, key=lambda each: each.failed, reverse=True)
    return listed


ORDERS = ("newest", "name", "mean reward", "failures")


async def look_at_runs(context: Context) -> object:
    """Returns a value that changes whenever the list of runs changes. Also reads the next run whose
    trajectories are not yet known."""
    journal = await context.source.journal()
    rows = await journal.runs(counted=False)
    versions = []
    has_read = False
    for row in reversed(rows[-PAGE:]):
        run = await context.source.run(row.name)
        known = context.digests.known(run)
        if (known is None and not has_read) or (known is not None and row.live_workers):
            has_read = has_read or known is None
            known = await context.digests.read(journal, run)
        versions.append(None if known is None else known.version)
    return repr((rows, versions))


async def row_of(journal: Journal, run: Run) -> RunRow:
    rows = await journal.runs(counted=False)
    return next(row for row in rows if row.name == run.spec.name)
