"""`--dry-run` of `holdfast run` and `holdfast train`: checks the command, and shows what it would
do, without sampling, scoring or recording.

The prompt that it shows is the rollout's real first request. To get this request, it runs the
rollout's code until then, with a journal that is not kept.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from holdfast.cli.setup.command_run import code_name, journal_exists
from holdfast.cli.terminal.text import reader_may_leave, visible
from holdfast.engine.connect import Connection
from holdfast.engine.report import as_text, build, many
from holdfast.engine.running.reuse import count_reusable
from holdfast.engine.running.run_plan import RunPlan
from holdfast.engine.running.series import changes_of
from holdfast.journal import opened_journal
from holdfast.journal.sql.journal import Journal
from holdfast.journal.sqlite.journal import MemoryJournal
from holdfast.policy.policy import Completion, NoPolicy, Request, WrappedPolicy
from holdfast.policy.rendering.renderer import Renderer
from holdfast.policy.rendering.select import renderer_for
from holdfast.records.encoding.redaction import redact
from holdfast.records.errors import PolicyRefused
from holdfast.records.exit_codes import Exit
from holdfast.records.group import Shortfall
from holdfast.records.task import Task
from holdfast.worlds.running.providers import Providers
from holdfast.worlds.running.removal import remove_leftovers

if TYPE_CHECKING:
    from holdfast.training.settings import TrainingSettings

MAX_TOKENS = 2_000
"""The most tokens of a prompt that are shown."""
SEPARATOR = "│"


async def dry_run(args: argparse.Namespace, plan: RunPlan, connection: Connection) -> int:
    return await _show(args, await _about_run(args, plan), plan, connection)


async def _show(
    args: argparse.Namespace, lines: Sequence[str], plan: RunPlan, connection: Connection
) -> int:
    lines = [*lines, *_about_settings(plan, args.scorer), *await _first_prompt(plan, connection)]
    with reader_may_leave():
        print(visible(redact("\n".join(lines))), flush=True)
    return Exit.OK


async def dry_training(
    args: argparse.Namespace,
    plan: RunPlan,
    settings: "TrainingSettings",
    held_out: Sequence[Task],
    *,
    model: Path,
) -> int:
    from holdfast.training.run.loop import newest_step

    connection = Connection(NoPolicy(model.name), renderer_for(model))
    plan = await plan.bind(connection).bind_scorer()
    step = newest_step(Path(args.out), settings, run=args.run)
    shape = f"{many(settings.groups, 'task')} × {many(settings.samples, 'sample')}"
    lines = [
        f"training {plan.spec.name}: {many(settings.trainer.steps, 'step')}, each of {shape}",
        f"  folder: {args.out}, {f'goes on after step {step}' if step else 'begins'}",
        f"  loss: {args.loss}",
    ]
    if held_out:
        every = many(settings.eval_every, "step")
        lines.append(f"  evaluated on: {many(len(held_out), 'task')}, every {every}")
    return await _show(args, lines, plan, connection)


async def _about_run(args: argparse.Namespace, plan: RunPlan) -> list[str]:
    spec = plan.spec
    total = len(plan.tasks) * spec.samples
    shape = f"{many(len(plan.tasks), 'task')} × {many(spec.samples, 'sample')}"
    lines = [f"run {spec.name}: {shape}"]
    if not journal_exists(args.journal):
        return [*lines, f"  sampled: {total:,}"]
    async with opened_journal(args.journal, read_only=True) as journal:
        return [*lines, *await _about_recorded(args, journal, plan, total)]


async def _about_recorded(
    args: argparse.Namespace, journal: Journal, plan: RunPlan, total: int
) -> list[str]:
    spec = plan.spec
    run = await journal.find_run(spec.name)
    if run is not None and run.spec.differences(spec):
        changes = "; ".join(await changes_of(journal, run, spec, plan.tasks, code_name(args)))
        how = "goes on" if args.accept_changes else "is refused without --accept-changes"
        return [f"  {how}: {changes}"]
    if run is not None:
        rows = [row for row in await journal.trajectories(run) if not row.resting]
        begun = sum(bool(row.records) for row in rows)
        done = sum(row.settled for row in rows)
        return [f"  goes on: {done:,} settled, {begun - done:,} begun, {total - begun:,} sampled"]
    reused = await count_reusable(journal, spec, plan.tasks)
    return [
        f"  sampled: {total - reused.total():,}",
        *(f"  reused from {name}: {count:,}" for name, count in reused.items()),
    ]


def _about_settings(plan: RunPlan, scorer: str | None) -> list[str]:
    spec, group = plan.spec, plan.spec.group
    changed = {
        name: value
        for name, value in structs.asdict(spec.sampling).items()
        if name in ("max_tokens", "temperature") or value != getattr(type(spec.sampling)(), name)
    }
    sampling = ", ".join(f"{name} {value}" for name, value in changed.items())
    seed = "" if spec.seed is None else f", seed {spec.seed}"
    own = spec.scorer.partition("@")[0]
    kept = f"groups with {group.at_least} or more of {spec.samples} outcomes"
    if group.shortfall is Shortfall.DROP:
        kept = f"groups with all of their {spec.samples} outcomes"
    return [
        f"  model: {spec.model}, {sampling}{seed}",
        f"  scored by: {scorer or own or 'the rollout itself, if it returns one'}",
        f"  kept: {kept}",
    ]


class _Capture(WrappedPolicy):
    """A policy that keeps the first request, and refuses all requests, which ends the rollout."""

    request: Request | None = None

    async def sample(self, request: Request) -> Completion:
        self.request = self.request or request
        raise PolicyRefused("a dry run samples nothing")


async def _first_prompt(plan: RunPlan, connection: Connection) -> Sequence[str]:
    policy = _Capture(connection.policy)
    spec = structs.replace(plan.spec, samples=1, series="", group=type(plan.spec.group)())
    settings = structs.replace(plan.settings, max_retry=0, concurrency=1)
    alone = structs.replace(plan, spec=spec, scorer=None, settings=settings)
    async with MemoryJournal() as journal:
        run = await journal.create_run(spec, plan.tasks[:1])
        await alone.engine(run, journal, Connection(policy, connection.renderer)).work()
        await _remove_worlds(journal)
        if policy.request is None:
            text = as_text(await build(journal, run))
            return ["  the rollout asked for no reply:", *text.splitlines()[1:]]
    return [f"  first prompt, of {plan.tasks[0].id}:", *_shown(policy.request, connection.renderer)]


async def _remove_worlds(journal: Journal) -> None:
    """Removes the worlds that the rollout opened, because the journal is about to be lost."""
    if await journal.worlds():
        providers = Providers()
        await remove_leftovers(journal, providers)
        await providers.close()


def _shown(request: Request, renderer: Renderer) -> list[str]:
    """Returns lines that show a prompt token by token, or message by message if the engine takes no
    tokens."""
    if not request.prompt:
        return [f"    {message.role}: {message.text}" for message in request.messages]
    ids = request.prompt[:MAX_TOKENS]
    text = SEPARATOR.join(renderer.decode([token]) for token in ids).replace("\n", "⏎\n")
    more = len(request.prompt) - len(ids)
    rest = [f"    … {more:,} tokens more"] if more else []
    count = f"    {many(len(request.prompt), 'token')}, divided by {SEPARATOR}"
    return [count, *(f"    {line}" for line in text.splitlines()), *rest]
