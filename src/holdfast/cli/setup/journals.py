"""Opening the journal, and the run, that a command names."""

import argparse
import shlex
from pathlib import Path

import msgspec

from holdfast.cli.terminal.text import notify
from holdfast.engine.open_run import free_name, open_run
from holdfast.engine.run_plan import RunPlan
from holdfast.journal import open_journal
from holdfast.journal.journal import Journal
from holdfast.records.errors import UsageError
from holdfast.records.run import Run, RunSpec


def to_read(where: str) -> Journal:
    if Path(where).exists() and not Path(where).is_file():
        raise UsageError(f"journal {where} is no regular file; name another one with --journal")
    if not Path(where).is_file():
        raise UsageError(f"there is no journal at {where}; name one with --journal")
    return open_journal(where, read_only=True)


async def open_command_run(args: argparse.Namespace, journal: Journal, plan: RunPlan) -> Run:
    """The run of the plan; with `--new`, another one."""
    spec = await _rename(journal, plan.spec) if args.new else plan.spec
    return await open_run(journal, spec, plan.tasks, accept_changes=args.accept_changes)


async def _rename(journal: Journal, spec: RunSpec) -> RunSpec:
    name = await free_name(journal, spec.name)
    if name != spec.name:
        notify(
            f"there is a run {spec.name!r} already; this one is {name!r}: go on with it by --run "
            f"{shlex.quote(name)}, without --new"
        )
    return msgspec.structs.replace(spec, name=name)
