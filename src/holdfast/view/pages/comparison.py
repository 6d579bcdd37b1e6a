"""The pages that compare two or more runs task by task, and show two trajectories side by side."""

import asyncio
import statistics
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
MAX_LISTED = 200
BEFORE, AFTER = 4, 30
"""How many messages before and after the first difference are shown."""


MAX_RUNS = 12


async def _runs(context: Context, request: web.Request) -> list[Run]:
    """Returns the runs that the address names: run A first, and then each run that is compared
    with it."""
    first, others = request.query.get("a", ""), dict.fromkeys(request.query.getall("b", []))
    if not first or not any(others):
        raise UsageError("a comparison names two runs: /compare?a=RUN&b=RUN")
    names = [first, *filter(None, others)]
    return [await context.source.run(name) for name in names[:MAX_RUNS]]


async def compare_page(request: web.Request) -> str:
    context, query = context_of(request), request.query
    metric = query.get("metric", "")
    journal = await context.source.journal()
    a, *others = await _runs(context, request)
    results = [await _results(context, journal, run) for run in (a, *others)]
    comparisons = [
        await asyncio.to_thread(compare, results[0], other, metric=metric or None)
        for other in results[1:]
    ]
    scores = [_means(each, metric) for each in results]
    tasks = sorted(
        dict.fromkeys(task for each in comparisons for task, _ in biggest_changes(each.paired)),
        key=lambda task: -max(abs(each.paired.by_task.get(task, 0.0)) for each in comparisons),
    )
    pages = max(1, -(-len(tasks) // PAGE))
    page = min(whole_from(query, "page"), pages - 1)
    prompts = {task: text for each in comparisons for task, text in each.prompts.items()}
    rows = await journal.runs(counted=False)
    named = [run.spec.name for run in others]
    return context.render(
        "compare.html",
        title=", ".join([a.spec.name, *named]),
        named=named,
        a=a,
        others=others,
        comparisons=comparisons,
        texts=[format_comparison(each, changes=False) for each in comparisons],
        addable=[row.name for row in reversed(rows) if row.name not in (a.spec.name, *named)][
            :MAX_LISTED
        ],
        metric=metric,
        metrics=[m for m in results[0].metrics if all(m in each.metrics for each in results)],
        tasks=[
            (task, prompts.get(task, ""), [each.get(task) for each in scores])
            for task in tasks[page * PAGE : (page + 1) * PAGE]
        ],
        page=page,
        pages=pages,
    )


def _means(results: Results, metric: str) -> dict[str, float]:
    by_task = results.by_task(metric or None)
    return {task: statistics.fmean(scores) for task, scores in by_task.items()}


async def _results(context: Context, journal: Journal, run: Run) -> Results:
    results = await results_of(journal, run, source=context.source.name)
    return structs.replace(results, questions=questions_of(await journal.tasks(run)))


async def sides_page(request: web.Request) -> str:
    """Returns the page with two trajectories of one task, and with their first difference."""
    context, query = context_of(request), request.query
    journal = await context.source.journal()
    a, b = (await _runs(context, request))[:2]
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
