"""`holdfast rename` and `holdfast tag`: change the name and the tags of a run."""

import argparse

from holdfast.cli.setup.journals import to_change
from holdfast.cli.terminal.text import print_json, visible_name
from holdfast.engine.open_run import is_training
from holdfast.journal.sql.find_run import run_named
from holdfast.records.errors import UsageError
from holdfast.records.exit_codes import Exit


async def rename(args: argparse.Namespace) -> int:
    async with to_change(args.journal) as journal:
        run = await run_named(journal, args.run)
        if await is_training(journal, run):
            raise UsageError(
                f"run {args.run!r} is a training: its checkpoints and evaluations have its name, "
                "so it keeps it; tag it instead"
            )
        await journal.rename_run(run, args.name)
    if args.json:
        print_json({"name": args.name})
    else:
        print(f"{visible_name(args.run)} is {visible_name(args.name)} now")
    return Exit.OK


async def tag(args: argparse.Namespace) -> int:
    async with to_change(args.journal) as journal:
        run = await run_named(journal, args.run)
        if missing := [tag for tag in args.remove if tag not in run.spec.tags]:
            raise UsageError(
                f"run {args.run!r} has no tag {missing[0]!r}; its tags: "
                f"{', '.join(run.spec.tags) or 'none'}"
            )
        if args.tags or args.remove:
            kept = [tag for tag in run.spec.tags if tag not in args.remove]
            run = await journal.annotate_run(run, tags=[*kept, *args.tags])
    if args.json:
        print_json({"name": run.spec.name, "tags": list(run.spec.tags)})
    else:
        print(", ".join(map(visible_name, run.spec.tags)) or "no tags")
    return Exit.OK
