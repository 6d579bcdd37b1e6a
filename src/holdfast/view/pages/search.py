"""The page that searches the texts of a run's trajectories, one part of the run after another."""

from aiohttp import web

from holdfast.records.task import Task
from holdfast.view.pages.context import context_of
from holdfast.view.reading.listing import whole_from
from holdfast.view.reading.search import PLACES, SearchPart, search
from holdfast.view.rendering import run_url, with_query

MAX_QUERY = 300
MAX_AHEAD = 4_000
"""The largest number of trajectories that one part of a search covers, so that few tasks are read
for it."""


async def search_page(request: web.Request) -> str:
    context, query = context_of(request), request.query
    journal = await context.source.journal()
    run = await context.source.run(request.match_info["run"])
    text, place = query.get("q", "")[:MAX_QUERY], query.get("place", "")
    name = run.spec.name
    digest = await context.digests.read(journal, run)
    entries = list(digest.entries())
    part, start = SearchPart([], 0, 0), whole_from(query, "start")
    if text:
        reach = entries[: start + MAX_AHEAD]
        ordinals = list(dict.fromkeys(entry.ordinal for entry in reach[start:]))
        tasks: dict[int, Task] = {}
        if place in ("", "prompts"):
            read = await journal.tasks(run, ordinals=ordinals)
            tasks = dict(zip(ordinals, read, strict=True))
        part = await search(journal, reach, tasks, text=text, place=place, start=start)
    more = text and (part.end < len(entries) or not digest.is_whole)
    path = run_url(name, "search")
    return context.render(
        "search.html",
        title=f"{name}: search",
        crumbs=[(name, run_url(name))],
        run=run,
        q=text,
        place=place,
        places=PLACES,
        hits=part.hits,
        start=part.start,
        end=part.end,
        total=len(entries),
        is_whole=digest.is_whole,
        next=with_query(path, q=text, place=place, start=part.end) if more else "",
    )
