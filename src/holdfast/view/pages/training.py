"""The pages with the steps of a training, and the tokens that moved the model most in a step."""

import asyncio
import heapq

from aiohttp import web

from holdfast.engine.export.export import history_of
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import GroupEnd, LedgerEntry
from holdfast.records.errors import UsageError
from holdfast.records.history import History
from holdfast.records.run import Run
from holdfast.training.run.recorded import checkpoints_of, metrics_of
from holdfast.view import charts
from holdfast.view.pages.context import Context, context_of
from holdfast.view.reading.gradient import Moved, Weighing, pushes, reply_at, weigh
from holdfast.view.reading.listing import whole_from
from holdfast.view.reading.training import training_of
from holdfast.view.rendering import run_url

PAGE = 100
MOST_MOVED = 60


async def training_page(request: web.Request) -> str:
    context = context_of(request)
    journal = await context.source.journal()
    run = await context.source.run(request.match_info["run"])
    digest = await context.digests.read(journal, run)
    training = await training_of(journal, run, digest)
    name = run.spec.name
    if not training.reports:
        raise UsageError(f"run {name!r} is no training: nothing consumes its groups")
    steps = [x for _, lines in training.curves for line in lines.values() for x, _ in line]
    span = (min(steps, default=0.0), max(steps, default=1.0))
    marks = training.restarts
    drawn = [
        (title, lines, charts.line_chart(lines, title=title, axis="step", marks=marks, span=span))
        for title, lines in training.curves
    ]
    return context.render(
        "training.html",
        title=f"{name}: training",
        topic=run_url(name, "training"),
        crumbs=[(name, run_url(name))],
        run=run,
        training=training,
        curves=drawn,
        page=whole_from(request.query, "page"),
        size=PAGE,
        checkpoints=checkpoints_of(run),
        progress=await journal.progress(run),
    )


async def step_page(request: web.Request) -> str:
    """Returns the page of one step, which shows what the step was trained on."""
    context = context_of(request)
    journal = await context.source.journal()
    run = await context.source.run(request.match_info["run"])
    step = int(request.match_info["step"][:12])
    consumer, entries = await _entries(journal, run, step)
    trained = [entry.ordinal for entry in entries if entry.end is GroupEnd.TRAINED]
    weighing = await weigh(journal, run, trained) if trained else None
    moved = [] if weighing is None else await _moved(journal, run, weighing, trained)
    name = run.spec.name
    decode = await asyncio.to_thread(context.decoder, run.spec)
    digest = await context.digests.read(journal, run)
    return context.render(
        "step.html",
        title=f"{name}: step {step}",
        crumbs=[(name, run_url(name)), ("training", run_url(name, "training"))],
        run=run,
        step=step,
        consumer=consumer,
        entries=entries,
        groups={entry.ordinal: digest.groups.get(entry.ordinal, []) for entry in entries},
        advantages={} if weighing is None else _advantages(weighing),
        moved=[(each, decode([each.id]) if decode else "") for each in moved],
        weighing=weighing,
        numbers=metrics_of(run).get(step, {}),
        ordinals={entry.task: entry.ordinal for entry in entries},
    )


async def _entries(journal: Journal, run: Run, step: int) -> tuple[str, list[LedgerEntry]]:
    for consumer in await journal.consumers(run):
        entries = [e for e in await journal.ledger(run, consumer) if e.step == step]
        if entries:
            return consumer, entries
    raise UsageError(f"run {run.spec.name!r} has no step {step} in which a group was trained")


def _advantages(weighing: Weighing) -> dict[str, list[float]]:
    """Returns the distinct advantages in each trajectory, by the trajectory's name."""
    advantages: dict[str, list[float]] = {}
    for key, sample in weighing.samples():
        sequence = weighing.sequence(sample)
        if sequence is not None:
            advantages.setdefault(key, []).extend(dict.fromkeys(sequence.advantages))
    return advantages


async def _moved(
    journal: Journal, run: Run, weighing: Weighing, ordinals: list[int]
) -> list[Moved]:
    """Returns the tokens with the largest push in the step, positive or negative (`Moved.push`)."""
    pushed = [
        (abs(push), number, place, logprob, advantage, push)
        for number, (_, sample) in enumerate(weighing.samples())
        if (sequence := weighing.sequence(sample)) is not None
        for place, logprob, advantage, push in pushes(sequence)
    ]
    samples = list(weighing.samples())
    rows = {str(r.key): r for r in await journal.trajectories(run, ordinals=ordinals)}
    histories: dict[str, History] = {}
    moved = []
    for _, number, place, logprob, advantage, push in heapq.nlargest(MOST_MOVED, pushed):
        key, sample = samples[number]
        if key not in histories:
            histories[key] = await history_of(journal, rows[key])
        where = reply_at(histories[key], sample, place)
        path, at = where or ("", 0)
        moved.append(Moved(key, path, at, sample.token_ids[place], logprob, advantage, push))
    return moved


async def look_at_training(context: Context, name: str) -> object:
    """Returns a value that changes whenever the page of the training changes."""
    journal = await context.source.journal()
    run = await context.source.run(name)
    progress = await journal.progress(run)
    steps = await asyncio.to_thread(metrics_of, run)
    return (progress, len(await journal.versions(run)), repr(list(steps.items())[-1:]))
