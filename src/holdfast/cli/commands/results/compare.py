"""`holdfast compare`: compares two runs task by task. Each is a run of a journal or a file of
another tool."""

import argparse
from pathlib import Path

from msgspec import structs

from holdfast.cli.setup.journals import to_read
from holdfast.cli.terminal.text import notify, print_json, visible
from holdfast.engine.options import JOURNAL
from holdfast.evaluation.definition.flags import JOURNAL as EVALUATIONS
from holdfast.evaluation.stats.comparison import compare as compared
from holdfast.evaluation.stats.comparison import format_comparison, questions_of
from holdfast.evaluation.stats.results import Results, results_of
from holdfast.extras import needed_by
from holdfast.journal import is_server
from holdfast.journal.sql.find_run import run_named
from holdfast.records.errors import UsageError
from holdfast.records.exit_codes import Exit


async def compare(args: argparse.Namespace) -> int:
    a = await _results(args.run_a, args.journal)
    b = await _results(args.run_b, args.journal_b or args.journal)
    if (args.run_a, args.journal) == (args.run_b, args.journal_b or args.journal):
        notify(f"{args.run_a} is compared with itself")
    comparison = compared(a, b, metric=args.metric, by_id=args.by_id)
    if args.json:
        print_json(comparison)
    else:
        print(visible(format_comparison(comparison)))
    return Exit.OK


async def _results(name: str, where: str) -> Results:
    """Returns the results of the run with that name, or else of the file or folder with that name.
    Without --journal, the run may be in the journal of evaluations."""
    if where == JOURNAL.default and not await _has(where, name):
        is_there = await _has(EVALUATIONS, name) or not Path(where).exists()
        where = EVALUATIONS if is_there and Path(EVALUATIONS).is_file() else where
    if Path(name).exists() and not await _has(where, name):
        from holdfast.evaluation.importers.load import results_from

        with needed_by(name, extra="evaluation"):
            return results_from(Path(name))
    if "/" in name:  # A run's name never contains a slash.
        raise UsageError(f"there is no file {name}")
    async with to_read(where) as journal:
        run = await run_named(journal, name)
        results = await results_of(journal, run, source=where)
        return structs.replace(results, questions=questions_of(await journal.tasks(run)))


async def _has(where: str, name: str) -> bool:
    if not is_server(where) and not Path(where).is_file():
        return False
    async with to_read(where) as journal:
        return await journal.find_run(name) is not None
