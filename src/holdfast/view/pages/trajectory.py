"""The pages of one trajectory: its conversation, its tokens, its events, and its records."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec
from aiohttp import web

from holdfast.engine.export.export import history_of
from holdfast.evaluation.report.preview import target_text
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import TrajectoryRow
from holdfast.records.encoding.tokens import unpack_ids, unpack_logprobs
from holdfast.records.errors import UsageError
from holdfast.records.failure import fold_traceback
from holdfast.records.run import Run
from holdfast.records.step import Drafted, Generated, Record
from holdfast.records.trajectory import Status
from holdfast.records.view import TrajectoryView
from holdfast.view.pages.context import Context, context_of
from holdfast.view.reading.conversation import (
    MAX_CALLS,
    MAX_TEXT,
    Item,
    Tab,
    items_of,
    parts_of,
    tabs_of,
)
from holdfast.view.reading.listing import whole_from
from holdfast.view.reading.tokens import blocks_of, part_of
from holdfast.view.reading.waiting import what_now
from holdfast.view.rendering import run_url

MAX_TABS = 40
MAX_RECORDS = 100
MAX_RECORD_BYTES = 100_000
PIECE = 60_000
"""The length of one further piece of a long text, in characters."""
WAYS = ("conversation", "tokens", "events", "records")
_Values = Callable[
    [Context, web.Request, Run, TrajectoryView, Tab], Awaitable[Mapping[str, object]]
]
FIELDS = ("text", "reasoning", "request", "calls", "error")


async def locate(context: Context, request: web.Request) -> tuple[Run, TrajectoryRow]:
    """Returns the trajectory that the address names. Raises `UsageError` if it does not exist."""
    run = await context.source.run(request.match_info["run"])
    ordinal, sample = request.match_info["ordinal"], request.match_info["sample"]
    journal = await context.source.journal()
    return run, await row_at(journal, run, int(ordinal[:12]), int(sample[:12]))


async def row_at(journal: Journal, run: Run, ordinal: int, sample: int) -> TrajectoryRow:
    for row in await journal.trajectories(run, ordinals=[ordinal]):
        if row.key.sample == sample:
            return row
    raise UsageError(
        f"run {run.spec.name!r} has no trajectory {ordinal}/{sample}: it has no such task or sample"
    )


async def view_of(journal: Journal, run: Run, row: TrajectoryRow) -> TrajectoryView:
    [task] = await journal.tasks(run, ordinals=[row.ordinal])
    return TrajectoryView(row.key, task, await history_of(journal, row), id=row.id)


async def trajectory_page(request: web.Request) -> str:
    context, query = context_of(request), request.query
    run, row = await locate(context, request)
    journal = await context.source.journal()
    view = await view_of(journal, run, row)
    tabs = await asyncio.to_thread(tabs_of, view)
    step = query.get("step", "")
    tab = await asyncio.to_thread(tab_with, view, tabs, step) if step else None
    tab = tab or chosen_tab(tabs, query.get("tab", ""))
    way = query.get("as", WAYS[0])
    values = await _VALUES.get(way, _conversation)(context, request, run, view, tab)
    return context.render(
        "trajectory.html",
        title=f"{row.key}",
        topic=run_url(run.spec.name, row.ordinal, row.key.sample),
        crumbs=[(run.spec.name, run_url(run.spec.name))],
        run=run,
        row=row,
        view=view,
        history=view.history,
        target=target_text(view),
        tabs=tabs[:MAX_TABS],
        more_tabs=tabs[MAX_TABS:],
        tab=tab,
        way=way if way in WAYS else WAYS[0],
        ways=WAYS,
        base=run_url(run.spec.name, row.ordinal, row.key.sample),
        now_doing=what_now(view.history) if not view.history.status.is_over else "",
        is_failed=row.status is Status.FAILED,
        can_fork=run.spec.command is not None,
        siblings=await _siblings(journal, run, row),
        forks=await context.forks_of(row.key),
        **values,
    )


def chosen_tab(tabs: Sequence[Tab], path: str) -> Tab:
    for tab in tabs:
        if path in ("", tab.path):
            return tab
    raise UsageError(f"this trajectory has no branch that ends at step {path!r:.60}")


def tab_with(view: TrajectoryView, tabs: Sequence[Tab], step: str) -> Tab:
    """Returns the first branch that shows a step. Raises `UsageError` if none does."""
    for tab in tabs:
        if any(item.path == step for item in items_of(view, tab)):
            return tab
    raise UsageError(f"this trajectory shows no step {step!r:.60}")


async def _siblings(
    journal: Journal, run: Run, row: TrajectoryRow
) -> list[tuple[TrajectoryRow, float | None]]:
    """Returns the trajectories of the same task, which form a group, with their rewards."""
    rows = await journal.stored_summaries(run, [row.ordinal])
    return [(other, summary.reward if summary else None) for other, summary in rows]


async def _conversation(
    context: Context, request: web.Request, run: Run, view: TrajectoryView, tab: Tab
) -> Mapping[str, object]:
    items = await asyncio.to_thread(items_of, view, tab)
    parts = parts_of(items)
    # Of a trajectory that is being sampled, its end is what a reader waits for.
    last = len(parts) - 1 if "part" not in request.query and not view.status.is_over else 0
    part = min(whole_from(request.query, "part", last), len(parts) - 1)
    if step := request.query.get("step"):
        part = next(n for n, part in enumerate(parts) if any(items[at].path == step for at in part))
    shown = [(at, items[at]) for at in parts[part]]
    return {"items": shown, "part": part, "parts": len(parts), "max_calls": MAX_CALLS}


async def _tokens(
    context: Context, request: web.Request, run: Run, view: TrajectoryView, tab: Tab
) -> Mapping[str, object]:
    decode = await asyncio.to_thread(context.decoder, run.spec)
    blocks = await asyncio.to_thread(blocks_of, view.history, tab, decode)
    part = whole_from(request.query, "part")
    shown, parts = part_of(blocks, part)
    part = min(part, parts - 1)
    return {"blocks": shown, "part": part, "parts": parts, "has_text": decode is not None}


async def _events(
    context: Context, request: web.Request, run: Run, view: TrajectoryView, tab: Tab
) -> Mapping[str, object]:
    history = view.history
    failures = [*history.failures, *history.scoring_failures, *history.close_failures]
    folded = [(failure, fold_traceback(failure.traceback)) for failure in failures]
    return {"failures": folded, "part": 0, "parts": 1}


async def _records(
    context: Context, request: web.Request, run: Run, view: TrajectoryView, tab: Tab
) -> Mapping[str, object]:
    journal = await context.source.journal()
    assert view.id is not None, "it is from a journal"
    records = await journal.history(view.id)
    part = whole_from(request.query, "part")
    parts = _record_parts(records)
    part = min(part, len(parts) - 1)
    shown = [(at, type(records[at]).__name__, record_text(records[at])) for at in parts[part]]
    return {"records": shown, "part": part, "parts": len(parts)}


_VALUES: Mapping[str, _Values] = {
    "conversation": _conversation,
    "tokens": _tokens,
    "events": _events,
    "records": _records,
}


def _record_parts(records: Sequence[Record]) -> list[range]:
    parts, start, size = [], 0, 0
    for at, record in enumerate(records):
        length = min(len(msgspec.msgpack.encode(record)) * 3, MAX_TEXT * 2)
        if at > start and (size + length > MAX_RECORD_BYTES or at - start >= MAX_RECORDS):
            parts.append(range(start, at))
            start, size = at, 0
        size += length
    return [*parts, range(start, len(records))]


def record_text(record: Record) -> str:
    """Returns a record as JSON, with its fields by their names and its tokens as numbers."""
    fields: dict[str, object] = {name: getattr(record, name) for name in record.__struct_fields__}
    if isinstance(record, Generated | Drafted):
        fields["ids"] = list(unpack_ids(record.ids))
        fields["logprobs"] = [round(value, 4) for value in unpack_logprobs(record.logprobs)]
    if isinstance(record, Generated):
        fields["delta"] = list(unpack_ids(record.delta))
    plain = msgspec.to_builtins(fields, builtin_types=(bytes,), enc_hook=repr)
    return msgspec.json.format(msgspec.json.encode(_readable(plain)), indent=1).decode()


def _readable(value: object) -> object:
    """Returns the value with bytes as hexadecimal text, and short lists on one line."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(name): _readable(inner) for name, inner in value.items()}
    if isinstance(value, list) and len(value) > 8 and isinstance(value[0], int | float):
        return " ".join(map(str, value))
    return [_readable(each) for each in value] if isinstance(value, list) else value


# --- long texts, in pieces


async def text_page(request: web.Request) -> str:
    """Returns the page with one piece of a long text."""
    context, query = context_of(request), request.query
    run, row = await locate(context, request)
    journal = await context.source.journal()
    view = await view_of(journal, run, row)
    field = query.get("field", "text")
    at, offset = whole_from(query, "item"), whole_from(query, "offset")
    text = await _long_text(journal, view, query.get("tab", ""), at, field)
    return context.render(
        "text.html",
        title=f"{row.key}",
        crumbs=[(str(row.key), run_url(run.spec.name, row.ordinal, row.key.sample))],
        base=run_url(run.spec.name, row.ordinal, row.key.sample),
        tab=query.get("tab", ""),
        item=at,
        field=field,
        piece=text[offset : offset + PIECE],
        end=min(offset + PIECE, len(text)),
        length=len(text),
    )


async def _long_text(journal: Journal, view: TrajectoryView, tab: str, at: int, field: str) -> str:
    if field == "record":
        assert view.id is not None, "it is from a journal"
        records = await journal.history(view.id)
        if at < len(records):
            return record_text(records[at])
    elif field in FIELDS:
        items = items_of(view, chosen_tab(tabs_of(view), tab))
        if at < len(items):
            return _field(items[at], field)
    raise UsageError("there is no such text in this trajectory")


def _field(item: Item, field: str) -> str:
    if field == "calls":
        return "\n".join(f"{name}({arguments})" for name, arguments in item.calls)
    return str(getattr(item, field))


async def look_at_trajectory(context: Context, run: str, ordinal: int, sample: int) -> object:
    """Returns a value that changes whenever the page of the trajectory changes."""
    journal = await context.source.journal()
    row = await row_at(journal, await context.source.run(run), ordinal, sample)
    return (row.records, row.status, row.settled)
