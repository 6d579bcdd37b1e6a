"""`holdfast runs`: lists the runs of a journal, and the commands that continue them.

Evaluations are listed under their training. The listing reads no logs, so it takes little time.
"""

import argparse
import shlex
import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
from msgspec import Struct

from holdfast.cli.setup.journals import to_read
from holdfast.cli.terminal.text import age_text, date_text, print_json, visible_name
from holdfast.embedded.model.files import TINY
from holdfast.engine.open_run import TRAINED_MODEL, is_training
from holdfast.engine.options import JOURNAL
from holdfast.engine.progress.clustered import number_text
from holdfast.engine.report import many
from holdfast.journal.sql.find_run import run_named
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import GroupEnd, RunRow
from holdfast.records.encoding.redaction import redact
from holdfast.records.exit_codes import Exit
from holdfast.records.run import Run
from holdfast.records.trajectory import Status
from holdfast.training.report import HELD_OUT

Ends = dict[str, int]
"""The number of groups for each way to end, and the number of trained steps."""


async def runs(args: argparse.Namespace) -> int:
    async with to_read(args.journal) as journal:
        rows = await journal.runs()
        if args.tag is not None:
            rows = [row for row in rows if args.tag in await _tags(journal, row)]
        if args.names:
            print("".join(f"{visible_name(row.name)}\n" for row in rows), end="")
            return Exit.OK
        listed = {row.name: await _read(journal, row) for row in rows}
    if args.json:
        print_json([listed[row.name].as_fields() for row in rows])
        return Exit.OK
    if not rows:
        tagged = "" if args.tag is None else f" with tag {args.tag!r}"
        print(f"{redact(args.journal)} has no runs{tagged or ' yet'}")
    names = {row.name for row in rows}
    for row in rows:
        if args.all or training_of(row.name, names) is None:
            print("\n".join(_lines(listed[row.name], args.journal)))
            if not args.all:
                _print_evaluations(row, rows)
    return Exit.OK


class _Listed(Struct, frozen=True):
    """One run in the list."""

    row: RunRow
    run: Run
    consumers: dict[str, Ends]
    rewards: list[float]
    is_training: bool

    @property
    def mean_reward(self) -> float | None:
        return sum(self.rewards) / len(self.rewards) if self.rewards else None

    @property
    def is_over(self) -> bool:
        return self.row.sealed and self.row.settled >= sum(self.row.by_status.values())

    def as_fields(self) -> dict[str, object]:
        """Returns the run as fields, for scripts."""
        spec = self.run.spec
        fields: dict[str, object] = msgspec.to_builtins(self.row)
        return fields | {
            "consumers": self.consumers,
            "model": spec.model,
            "mean_reward": self.mean_reward,
            "rewards": len(self.rewards),
            "tags": list(spec.tags),
            "command": msgspec.to_builtins(spec.command),
            "over": self.is_over,
        }


async def _read(journal: Journal, row: RunRow) -> _Listed:
    run = await run_named(journal, row.name)
    rewards = [reward for _, reward in await journal.rewards(run)]
    return _Listed(
        row, run, await _consumers(journal, row), rewards, await is_training(journal, run)
    )


async def _tags(journal: Journal, row: RunRow) -> Sequence[str]:
    return (await run_named(journal, row.name)).spec.tags


async def _consumers(journal: Journal, row: RunRow) -> dict[str, Ends]:
    run = await run_named(journal, row.name)
    consumers = {}
    for name in await journal.consumers(run):
        entries = await journal.ledger(run, name)
        ends = Counter(entry.end for entry in entries)
        trained = [entry.step or 0 for entry in entries if entry.end is GroupEnd.TRAINED]
        consumers[name] = {str(end): ends[end] for end in GroupEnd} | {
            "steps": max(trained, default=0)
        }
    return consumers


def training_of(name: str, names: "set[str]") -> str | None:
    """Returns the training that a run of this name evaluates, if it is among `names`. Otherwise
    returns None."""
    training = name.rpartition(HELD_OUT)[0]
    return training if training in names else None


def _lines(listed: _Listed, journal: str) -> list[str]:
    row, spec = listed.row, listed.run.spec
    total = sum(row.by_status.values())
    counts = f" ({_counts(row)})" if total else ""
    head = (
        f"{visible_name(row.name)}: {date_text(row.created)} "
        f"({age_text(time.time() - row.created)} ago), {many(row.tasks, 'task')} × "
        f"{many(row.samples, 'sample')}, {row.settled} of {total} settled{counts}"
    )
    lines = [head if row.sealed else f"{head}, open for more tasks"]
    lines.append(f"  {', '.join(_facts(listed))}")
    names = listed.consumers.items()
    lines += [f"  {visible_name(name)}: {_trained(ends)}" for name, ends in names]
    lines += [f"  being worked on by {worker}" for worker in row.live_workers]
    if not listed.is_over and not row.live_workers and spec.command is not None:
        lines.append(f"  to go on: {resume_text(row.name, journal)}")
    return lines


def _facts(listed: _Listed) -> list[str]:
    spec, mean = listed.run.spec, listed.mean_reward
    facts = _model(listed)
    if mean is not None:
        facts.append(f"mean reward {number_text(mean)} (n={len(listed.rewards)})")
    else:
        facts.append("no rewards")
    return facts + ([f"tags {', '.join(map(visible_name, spec.tags))}"] if spec.tags else [])


def _model(listed: _Listed) -> list[str]:
    """Returns the text about the model of a run. The engines of a training use one name for every
    version, so the model of a training is taken from its command."""
    spec = listed.run.spec
    if not listed.is_training or spec.model != TRAINED_MODEL:
        return [f"model {visible_name(spec.model)}"] if spec.model else []
    arguments = () if spec.command is None else spec.command.words
    named = [after for word, after in pairwise(arguments) if word == "--model"]
    named += [word.partition("=")[2] for word in arguments if word.startswith("--model=")]
    folder = Path(named[-1]).name if named else TINY.name
    return ["trains a model" if spec.command is None else f"trains {visible_name(folder)}"]


def resume_text(name: str, journal: str) -> str:
    """Returns the command that continues a run."""
    arguments = ["holdfast", "resume", name]
    if journal != JOURNAL.default:
        arguments += ["--journal", redact(journal)]
    return shlex.join(arguments)


def _trained(ends: Ends) -> str:
    return (
        f"{many(ends['steps'], 'step')} trained on {many(ends['trained'], 'group')}, "
        f"{ends['dismissed']} dismissed, {ends['open']} open"
    )


def _print_evaluations(row: RunRow, run_rows: Sequence[RunRow]) -> None:
    mine = [each.name for each in run_rows if training_of(each.name, {row.name})]
    if mine:
        between = ", … " if len(mine) > 2 else ", "
        shown = mine[0] if len(mine) == 1 else f"{mine[0]}{between}{mine[-1]}"
        print(f"  {many(len(mine), 'evaluation')} (--all): {visible_name(shown)}")


def _counts(row: RunRow) -> str:
    """Returns the counts of trajectories by status. A trajectory counts as running only while a
    process works on the run."""
    left = "unfinished: nobody works on them"
    running = Status.RUNNING.name if row.live_workers else left
    names = {Status.RUNNING.name: running}
    return ", ".join(
        f"{total} {names.get(status, status)}" for status, total in row.by_status.items()
    )
