"""Opening the run that a command names: new, the same again, or changed with consent.

A change is told, and recorded, in words: which tasks came and went, not which digest became which.
Nothing is changed while a live worker holds the run.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence

import msgspec

from holdfast.cli.printing import name as shown
from holdfast.engine.run import RunChanged, free_name, open_run
from holdfast.journal.journal import Journal
from holdfast.journal.process import this_process
from holdfast.records.run import Run, RunSpec
from holdfast.records.task import Task, content_digest, tasks_digest

NAMED = 3


async def opened(
    args: argparse.Namespace, journal: Journal, spec: RunSpec, tasks: Sequence[Task]
) -> Run:
    if args.new:
        spec = await _renamed(journal, spec)
    run = await journal.find_run(spec.name)
    differences = [] if run is None else run.spec.differences(spec)
    if run is None or not differences:
        return await open_run(journal, spec, tasks)
    told = await _in_words(journal, run, tasks, differences)
    if not args.accept_changes:
        raise RunChanged(spec.name, told)
    # Joining refuses when a live worker goes by what is recorded now, also with --join.
    worker = await journal.join(run, this_process(), lease_seconds=args.lease, share=False)
    try:
        return await journal.amend_run(run, spec, tasks, differences=told)
    finally:
        await journal.leave(worker)


async def _renamed(journal: Journal, spec: RunSpec) -> RunSpec:
    name = await free_name(journal, spec.name)
    if name != spec.name:
        print(
            f"holdfast: there is a run {spec.name!r} already; this one is {name!r}: go on with it "
            f"by --run {name}, without --new",
            file=sys.stderr,
        )
    return msgspec.structs.replace(spec, name=name)


async def _in_words(
    journal: Journal, run: Run, tasks: Sequence[Task], differences: Sequence[str]
) -> list[str]:
    recorded = await journal.tasks(run)
    # Tasks that were taken out earlier are still listed: comparing with those would be wrong.
    same = tasks_digest(recorded) == run.spec.tasks
    told = _compared(recorded, tasks) if same else "tasks: not those that the run has now"
    return [told if line.startswith("tasks:") else line for line in differences]


def _compared(recorded: Iterable[Task], now: Iterable[Task]) -> str:
    before = {task.id: content_digest(task) for task in recorded}
    after = {task.id: content_digest(task) for task in now}
    parts = {
        "added": [one for one in after if one not in before],
        "removed": [one for one in before if one not in after],
        "changed": [one for one in after if one in before and after[one] != before[one]],
    }
    told = [f"{len(ids)} {what} ({_listed(ids)})" for what, ids in parts.items() if ids]
    return f"tasks: {', '.join(told) or 'in another order'}"


def _listed(ids: Sequence[str]) -> str:
    return ", ".join([*(shown(one) for one in ids[:NAMED]), *(["…"] if len(ids) > NAMED else [])])
