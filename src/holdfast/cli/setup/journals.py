"""Opening the run that a command names."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from holdfast.engine.open_run import free_name, open_run
from holdfast.journal import open_journal
from holdfast.journal.journal import Journal
from holdfast.records.errors import UsageError
from holdfast.records.run import Run, RunSpec
from holdfast.records.task import Task


def to_read(where: str) -> Journal:
    if Path(where).exists() and not Path(where).is_file():
        raise UsageError(f"journal {where} is no regular file; name another one with --journal")
    if not Path(where).is_file():
        raise UsageError(f"there is no journal at {where}; name one with --journal")
    return open_journal(where, read_only=True)


async def opened(
    args: argparse.Namespace, journal: Journal, spec: RunSpec, tasks: Sequence[Task]
) -> Run:
    if args.new:
        spec = await _renamed(journal, spec)
    return await open_run(journal, spec, tasks, accept_changes=args.accept_changes)


async def _renamed(journal: Journal, spec: RunSpec) -> RunSpec:
    name = await free_name(journal, spec.name)
    if name != spec.name:
        print(
            f"holdfast: there is a run {spec.name!r} already; this one is {name!r}: go on with it "
            f"by --run {shlex.quote(name)}, without --new",
            file=sys.stderr,
        )
    return msgspec.structs.replace(spec, name=name)
