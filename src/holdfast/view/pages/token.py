"""The page that shows why a token is in the gradient: its turn, its attempt, its version, its
group, its advantage, and the step that trained it."""

import asyncio

from aiohttp import web
from msgspec import Struct

from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import GroupEnd, LedgerEntry, TrajectoryRow
from holdfast.records.encoding.tokens import unpack_ids
from holdfast.records.errors import UsageError
from holdfast.records.run import Run
from holdfast.records.samples.sample import Sample
from holdfast.records.step import AttemptStarted, Drafted, Forked, Generated, Record, is_cut_by
from holdfast.training.run.recorded import checkpoints_of, metrics_of
from holdfast.view.pages.context import context_of
from holdfast.view.pages.trajectory import locate, view_of
from holdfast.view.reading.conversation import Tab
from holdfast.view.reading.gradient import Weighing, place_of, pushes, settings_of, weigh
from holdfast.view.reading.listing import whole_from
from holdfast.view.reading.tokens import Block, Token, blocks_of
from holdfast.view.rendering import run_url

AROUND = 60
"""How many tokens before and after the chosen one are shown."""


class Trained(Struct, frozen=True):
    """How a consumer used the group of the token."""

    consumer: str
    entry: LedgerEntry
    numbers: dict[str, float]
    checkpoints: list[int]
    """The checkpoints on this machine that were saved at this step or later."""


class Weight(Struct, frozen=True):
    """The advantage, the weight and the push of a token in its step. `Moved.push` explains the
    push."""

    advantage: float
    weight: float
    push: float
    baseline: list[tuple[str, float | None]]
    """The rewards of the group's valid trajectories, with which the reward of the token's
    trajectory is compared."""
    missing: str


async def token_page(request: web.Request) -> str:
    context, query = context_of(request), request.query
    run, row = await locate(context, request)
    journal = await context.source.journal()
    view = await view_of(journal, run, row)
    path, at = query.get("step", ""), whole_from(query, "at")
    step = view.history.steps.get(path)
    if not isinstance(step, Generated) or at >= len(unpack_ids(step.ids)):
        raise UsageError(f"this trajectory has no token {at} of a reply at step {path!r:.60}")
    assert view.id is not None, "it is from a journal"
    decode = await asyncio.to_thread(context.decoder, run.spec)
    records = await journal.history(view.id)
    trained = await _trained(journal, run, row)
    weight, why_not = await _weight(journal, run, row, step, at, trained)
    block = _block(blocks_of(view.history, Tab(path, "", 0), decode), path)
    versions = {version.name: version for version in await journal.versions(run)}
    token = block.tokens[at]
    return context.render(
        "token.html",
        title=f"{row.key}: token {at} of step {path}",
        crumbs=[
            (run.spec.name, run_url(run.spec.name)),
            (str(row.key), run_url(run.spec.name, row.ordinal, row.key.sample)),
        ],
        base=run_url(run.spec.name, row.ordinal, row.key.sample),
        run=run,
        row=row,
        step=step,
        at=at,
        token=token,
        around=_around(block, at),
        turn=[each.path for each in view.history.generations].index(path) + 1,
        attempt=sampled_in(records, path),
        version=versions.get(token.version),
        trained=trained,
        weight=weight,
        why_not=why_not,
        settings=settings_of(run),
        has_text=decode is not None,
        gap=_gap(trained),
    )


def _block(blocks: list[Block], path: str) -> Block:
    return next(block for block in blocks if block.path == path and block.kind != "prompt")


def _around(block: Block, at: int) -> list[Token]:
    return block.tokens[max(0, at - AROUND) : at + AROUND]


def _gap(trained: list[Trained]) -> dict[str, float]:
    numbers = next((each.numbers for each in trained if each.numbers), {})
    return {name: numbers[name] for name in ("gap_mean", "gap_max") if name in numbers}


def sampled_in(records: list[Record], path: str) -> AttemptStarted | None:
    """Returns the attempt that sampled the reply at `path`. A reply that a fork removed does not
    count."""
    attempt, sampled = None, None
    for record in records:
        if isinstance(record, AttemptStarted):
            attempt = record
        elif isinstance(record, Generated | Drafted) and record.path == path:
            # A reply that was sampled in parts belongs to the attempt that began it.
            sampled = sampled or attempt
        elif isinstance(record, Forked) and is_cut_by(path, record.path):
            sampled = None
    return sampled


async def _trained(journal: Journal, run: Run, row: TrajectoryRow) -> list[Trained]:
    rows = []
    for consumer in await journal.consumers(run):
        ledger = await journal.ledger(run, consumer, since=row.ordinal)
        for entry in ledger[:1]:
            numbers = metrics_of(run).get(entry.step or -1, {})
            has = [step for step in checkpoints_of(run) if step >= (entry.step or 0)]
            rows.append(Trained(consumer, entry, numbers, has))
    return [each for each in rows if each.entry.ordinal == row.ordinal]


async def _weight(
    journal: Journal,
    run: Run,
    row: TrajectoryRow,
    step: Generated,
    at: int,
    trained: list[Trained],
) -> tuple[Weight | None, str]:
    """Returns the token's weight in its step. If no loss uses the token, or its weight is not
    known, returns None and the reason."""
    in_steps = [each for each in trained if each.entry.end is GroupEnd.TRAINED]
    if not in_steps:
        return None, "no step has trained its group"
    if not step.trainable:
        return None, "another speaker than the policy sampled it, so no loss uses it"
    ledger = await journal.ledger(run, in_steps[0].consumer)
    number = in_steps[0].entry.step
    taken = [e for e in ledger if e.step == number and e.end is GroupEnd.TRAINED]
    ordinals = [entry.ordinal for entry in taken]
    weighing = await weigh(journal, run, ordinals)
    if weighing is None:
        return None, "the run does not record the settings of its training, or the step is large"
    sample = _sample(weighing, row, step, at)
    sequence = None if sample is None else weighing.sequence(sample)
    if sequence is None:
        return None, "its trajectory is in no loss: it failed, has no reward, or is masked"
    for place, _, advantage, push in pushes(sequence):
        if place == place_of(step, at):
            baseline = _baseline(weighing, row)
            return Weight(advantage, sequence.weight, push, baseline, weighing.missing), ""
    return None, "another branch of the trajectory trains it, or it is masked"


def _sample(weighing: Weighing, row: TrajectoryRow, step: Generated, at: int) -> Sample | None:
    """Returns the sample in which the token is trained, or None."""
    place, wanted = place_of(step, at), unpack_ids(step.ids)[at]
    for key, sample in weighing.samples():
        is_here = key == str(row.key) and place < len(sample.token_ids)
        if is_here and sample.token_ids[place] == wanted and sample.loss_mask[place]:
            return sample
    return None


def _baseline(weighing: Weighing, row: TrajectoryRow) -> list[tuple[str, float | None]]:
    group = next(group for group in weighing.groups if group.task == row.key.task)
    return [(trajectory.key, trajectory.reward) for trajectory in group.trajectories]
