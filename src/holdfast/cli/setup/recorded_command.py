"""Records the command of a run, so that `holdfast resume` can repeat it.

The record is the typed command without secrets and without options that take effect only once. It
also leaves out the names of the run and the journal, because a run can be renamed and a journal
moved.
"""

import argparse
import os
from collections.abc import Sequence

from msgspec import structs

from holdfast.cli.options.parser import Parser
from holdfast.cli.setup.config_file import Invocation
from holdfast.engine.options import ONCE
from holdfast.engine.running.run_plan import RunPlan
from holdfast.records.encoding.redaction import REDACTED, redact
from holdfast.records.errors import UsageError
from holdfast.records.run import RecordedCommand, Run

_ONCE = frozenset(
    {
        *ONCE, "--run", "--journal", "--join",
        "--json", "--quiet", "--view", "--as-worker", "--dry-run",
    }
)  # fmt: skip
"""Options that take effect in one start only, or that `resume` sets itself."""


def command_of(args: argparse.Namespace) -> RecordedCommand | None:
    """Returns the command to record, or None if no command was typed."""
    invocation: Invocation | None = getattr(args, "invocation", None)
    if invocation is None:
        return None
    parser, arguments = invocation.parser, invocation.words
    kept = [arguments[0]]
    for name, parts in parser.leaf(arguments).split(arguments[1:]):
        if name not in _ONCE:
            kept += map(redact, parts)
    return RecordedCommand(tuple(kept), os.getcwd())


def with_command(plan: RunPlan, args: argparse.Namespace) -> RunPlan:
    spec = structs.replace(plan.spec, command=command_of(args))
    return structs.replace(plan, spec=spec)


def words_of(
    run: Run, parser: Parser, *, journal: str, instead: Sequence[str] = (), name: str = ""
) -> list[str]:
    """Returns the words of the command that continues the run, or begins the run `name`. The user's
    options `instead` replace the recorded ones."""
    command = run.spec.command
    if command is None:
        raise UsageError(
            f"run {run.spec.name!r} has no recorded command: a program began it; give the "
            "command itself once, and it is recorded"
        )
    word, *rest = command.words
    if word not in parser.commands:
        raise UsageError(f"run {run.spec.name!r} was begun by `holdfast {word}`, unknown here")
    leaf = parser.commands[word]
    replaced = {_base(option) for option, _ in leaf.split(instead) if option}
    kept = [word]
    for option, parts in leaf.split(rest):
        if option and _base(option) in replaced:
            continue
        if any(REDACTED in part for part in parts):
            raise UsageError(
                f"run {run.spec.name!r}: {option or 'an argument'} of its command had a secret in "
                f"it, which is not recorded; give it anew: holdfast resume {run.spec.name} "
                f"{option or ''} …"
            )
        kept += parts
    return [*kept, "--run", name or run.spec.name, "--journal", journal, *instead]


def _base(option: str) -> str:
    return option.replace("--no-", "--", 1)
