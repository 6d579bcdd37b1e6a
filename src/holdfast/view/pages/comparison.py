"""Two runs, task by task, and two trajectories side by side."""

import asyncio
from itertools import zip_longest

from aiohttp import web
from msgspec import structs

from holdfast.evaluation.stats.comparison import (
    biggest_changes,
    compare,
    format_comparison,
    questions_of,
)
from holdfast.evaluation.stats.results import Results, results_of
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import TrajectoryRow
from holdfast.records.errors import UsageError
from holdfast.records.run import Run
from holdfast.view.pages.context import Context, context_of
from holdfast.view.pages.trajectory import view_of
from holdfast.view.reading.conversation import Item, items_of, tabs_of
from holdfast.view.reading.listing import whole_from
from holdfast.view.rendering import run_url

PAGE = 200
BEFORE, AFTER = 4, 30
"""How many messages before and after the first difference are shown."""


async def _both(context: Context, request: web.Request) -> tuple[Run, Run]:
    names = [request.query.get(side, "") for side in ("a", "b")]
    if not all(names):
        raise UsageError("a comparison names two runs: /compare?a=RUN&b=RUN")
    return await context.source.run(names[0]), await context.source.run(names[1])


async def compare_page(request: web.Request) -> str:
    context, metric = context_of(request), request.query.get("metric", "")
    journal = await context.source.journal()
    a, b = await _both(context, request)
    results = [await _results(context, journal, run) for run in (a, b)]
    comparison = await asyncio.to_thread(compare, *results, metric=metric or None)
    changes = biggest_changes(comparison.paired)
    pages = max(1, -(-len(changes) // PAGE))
    page = min(whole_from(request.query, "page"), pages - 1)
    return context.render(
        "compare.html",
        title=f"{a.spec.name} and {b.spec.name}",
        a=a,
        b=b,
        text=format_comparison(comparison),
        metric=metric,
        metrics=[name for name in results[0].metrics if name in results[1].metrics],
        changes=changes[page * PAGE : (page + 1) * PAGE],
        prompts=comparison.prompts,
        page=page,
        pages=pages,
    )


async def _results(context: Context, journal: Journal, run: Run) -> Results:
    results = await results_of(journal, run, source=context.source.name)
    return structs.replace(results, questions=questions_of(await journal.tasks(run)))


async def sides_page(request: web.Request) -> str:
    """Returns the page with two trajectories of one task, and with their first difference."""
    context, query = context_of(request), request.query
    journal = await context.source.journal()
    a, b = await _both(context, request)
    task = query.get("task", "")
    groups = [await _group(journal, run, task) for run in (a, b)]
    rows = [
        group[min(whole_from(query, name), len(group) - 1)]
        for group, name in zip(groups, ("sa", "sb"), strict=True)
    ]
    sides = [await _items(journal, run, row) for run, row in zip((a, b), rows, strict=True)]
    first = first_difference(*sides)
    start = max(0, (first or 0) - BEFORE)
    return context.render(
        "sides.html",
        title=f"{task}, side by side",
        crumbs=[("comparison", f"/compare?{request.query_string}")],
        a=a,
        b=b,
        task=task,
        first=first,
        how=_how(sides, first),
        cut=AFTER + BEFORE if max(map(len, sides)) > start + AFTER + BEFORE or start else 0,
        sa=str(rows[0].key.sample),
        sb=str(rows[1].key.sample),
        samples_a=[str(row.key.sample) for row in groups[0]],
        samples_b=[str(row.key.sample) for row in groups[1]],
        row_a=rows[0],
        row_b=rows[1],
        items_a=_shown(sides[0], first, start),
        items_b=_shown(sides[1], first, start),
        base_a=run_url(a.spec.name, rows[0].ordinal, rows[0].key.sample),
        base_b=run_url(b.spec.name, rows[1].ordinal, rows[1].key.sample),
    )


async def _group(journal: Journal, run: Run, task: str) -> list[TrajectoryRow]:
    ordinals = [row.ordinal for row in await journal.trajectories(run) if row.key.task == task]
    if not ordinals:
        raise UsageError(f"run {run.spec.name!r} has no task {task!r:.200}")
    return await journal.trajectories(run, ordinals=ordinals[:1])


async def _items(journal: Journal, run: Run, row: TrajectoryRow) -> list[Item]:
    view = await view_of(journal, run, row)
    return items_of(view, tabs_of(view)[0])


def first_difference(a: list[Item], b: list[Item]) -> int | None:
    """Returns the index of the first message that differs, or None if all messages are the same."""
    for at, (mine, other) in enumerate(zip_longest(a, b)):
        if mine is None or other is None or _said(mine) != _said(other):
            return at
    return None


def _said(item: Item) -> tuple[object, ...]:
    return (item.kind, item.text, item.request, item.error, item.calls, item.images)


def _how(sides: list[list[Item]], first: int | None) -> str:
    if first is None:
        return ""
    short = [name for name, side in zip("AB", sides, strict=True) if first >= len(side)]
    if short:
        return f"{short[0]} has ended"
    kinds = {side[first].kind for side in sides}
    return f"the {kinds.pop()}'s message" if len(kinds) == 1 else " and ".join(sorted(kinds))


def _shown(items: list[Item], first: int | None, start: int) -> list[tuple[int, Item, bool]]:
    shown = list(enumerate(items))[start : start + BEFORE + AFTER]
    return [(at, item, first is not None and at >= first) for at, item in shown]
