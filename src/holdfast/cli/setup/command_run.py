"""Finds or opens the run that a command names."""

import argparse
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast.cli.setup.user_code import split
from holdfast.cli.terminal.text import notify, visible_name
from holdfast.embedded.model.files import TINY
from holdfast.engine.open_run import check_same, finished_run, free_name, open_run, rolled_out_run
from holdfast.engine.report import many
from holdfast.engine.running.run_plan import RunPlan
from holdfast.engine.running.series import changes_of, name_in_series, open_in_series, run_with_all
from holdfast.journal import is_server, opened_journal
from holdfast.journal.sql.journal import Journal
from holdfast.records.errors import JournalDamaged, JournalError, JournalUnreachable
from holdfast.records.run import Run, RunSpec

if TYPE_CHECKING:
    from holdfast.training.settings import TrainingSettings


async def find_finished(args: argparse.Namespace, journal: Journal, plan: RunPlan) -> Run | None:
    """Returns the recorded run of the plan if nothing is left to do for it, or None. Returns None
    also if the options name another model or renderer than the record."""
    run = await finished_run(journal, plan.spec)
    return run if run is not None and _may_be_meant(args, run.spec) else None


async def find_rolled_out(args: argparse.Namespace, journal: Journal, plan: RunPlan) -> Run | None:
    """Returns the recorded run of the plan if it only needs scoring, or None. Without `--policy`,
    raises `RunChanged` if the recorded run differs, before the embedded engine is started for
    it."""
    if not args.policy:
        is_meant = partial(_may_be_meant, args)
        await check_same(
            journal, plan.spec, plan.tasks, is_meant=is_meant, accept_changes=args.accept_changes
        )
    run = await rolled_out_run(journal, plan.spec, plan.tasks, accept_changes=args.accept_changes)
    if run is None and plan.spec.series and await journal.find_run(plan.spec.name) is None:
        run = await run_with_all(journal, plan.spec, plan.tasks)
    return run if run is not None and _may_be_meant(args, run.spec) else None


def _may_be_meant(args: argparse.Namespace, recorded: RunSpec) -> bool:
    """Returns whether the options name the recorded model and renderer, or leave open what only an
    engine can say."""
    if args.renderer not in (None, recorded.renderer) or args.tokenizer is not None:
        return False
    if args.policy:
        return args.model in (None, recorded.model)
    folder = Path(args.model) if args.model else TINY
    return bool(folder.resolve().name == recorded.model)


async def name_run(args: argparse.Namespace, spec: RunSpec) -> str:
    """Returns the name of a run in a series, before an engine is contacted: the name of the
    recorded run that the command continues, or else the next name."""
    if not journal_exists(args.journal):
        return spec.name
    try:
        async with opened_journal(args.journal, read_only=True) as journal:
            return await name_in_series(
                journal,
                spec,
                is_meant=partial(_may_be_meant, args),
                accept_changes=args.accept_changes,
            )
    except (JournalUnreachable, JournalDamaged):
        raise
    except JournalError:  # Opening the journal to write raises a better error.
        return spec.name


async def name_training(
    args: argparse.Namespace, series: str, spec: RunSpec, settings: "TrainingSettings"
) -> str:
    """Returns the name of a training that the user did not name. If the newest training in the
    series has the same code, data and settings, returns its name. If it differs, returns the next
    name and prints a line that says how."""
    from holdfast.training.run.open_training import changes_of_training

    if not journal_exists(args.journal):
        return spec.name
    async with opened_journal(args.journal, read_only=True) as journal:
        ends = [row.name.removeprefix(f"{series}-") for row in await journal.runs()]
        newest = max((int(end) for end in ends if end.isdecimal()), default=0)
        run = await journal.find_run(f"{series}-{newest}")
        if run is None:
            return spec.name
        code = Path(split(args.rollout)[0]).name
        changes = await changes_of_training(journal, run, spec, settings, code=code)
    if not changes:
        return run.spec.name
    name = f"{series}-{newest + 1}"
    notify(f"{'; '.join(changes)}: this is {name}, a new training")
    return name


def journal_exists(address: str) -> bool:
    return is_server(address) or Path(address).is_file()


def code_name(args: argparse.Namespace) -> str:
    """Returns the name of the rollout's file, for lines about what changed."""
    return Path(split(getattr(args, "rollout", None) or "the code")[0]).name


async def open_command_run(args: argparse.Namespace, journal: Journal, plan: RunPlan) -> Run:
    """Opens the run of the plan. With `--new`, begins a new run. Prints which changes it accepted,
    or why the run is another one."""
    before = await journal.find_run(plan.spec.name) if args.accept_changes else None
    code = code_name(args)
    if plan.spec.series and not args.accept_changes:
        run, note = await open_in_series(journal, plan.spec, plan.tasks, code=code)
    else:
        spec = await _rename(journal, plan.spec) if args.new else plan.spec
        changes = []
        if before is not None:
            changes = await changes_of(journal, before, spec, plan.tasks, code)
        run = await open_run(journal, spec, plan.tasks, accept_changes=args.accept_changes)
        note = f"{visible_name(spec.name)}: accepted: {'; '.join(changes)}" if changes else ""
    if note and not args.quiet:
        notify(note)
    args.follow_run(run.spec.name)
    return run


async def going_on(journal: Journal, plan: RunPlan) -> str:
    """Returns a line about the progress of the run, or "" if the run is not in the journal yet."""
    run = await journal.find_run(plan.spec.name)
    if run is None:
        return ""
    progress = await journal.progress(run)
    return (
        f"{visible_name(run.spec.name)} goes on: {progress.settled:,} of "
        f"{many(progress.planned, 'trajectory')} finished before"
    )


async def _rename(journal: Journal, spec: RunSpec) -> RunSpec:
    name = await free_name(journal, spec.name)
    if name != spec.name:
        notify(
            f"there is a run {spec.name!r} already; this one is {name!r}: go on with it by --run "
            f"{shlex.quote(name)}, without --new"
        )
    return msgspec.structs.replace(spec, name=name)
