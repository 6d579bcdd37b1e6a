"""`holdfast logs`: lists the log files of a run's processes, newest last.

If there are log files, the command does not need the journal. So it works even if the journal's
database cannot be reached.
"""

import argparse
import contextlib
import time
from pathlib import Path

import msgspec
from msgspec import Struct

from holdfast import log_files
from holdfast.cli.setup.journals import to_read
from holdfast.cli.terminal.text import print_json, visible
from holdfast.journal import is_server
from holdfast.journal.sql.find_run import run_named
from holdfast.records.encoding.redaction import redact
from holdfast.records.errors import JournalError, UsageError
from holdfast.records.exit_codes import Exit


class LogFile(Struct, frozen=True):
    path: str
    bytes: int
    age_seconds: float
    last: str
    """The last lines of the file."""


async def logs(args: argparse.Namespace) -> int:
    folder = log_files.logs_of(args.run, args.journal)
    files = _read(folder, args.tail)
    elsewhere = log_files.read_index(folder)
    if not files and not elsewhere:
        await _check_run(args)
        raise UsageError(
            f"run {args.run!r} has no logs on this machine ({folder}): only scorers "
            "(--score-workers) and the processes of a cluster log to files; --journal names the "
            f"run's journal, and {log_files.LOGS} the folder"
        )
    if args.json:
        print_json({"files": [msgspec.to_builtins(f) for f in files], "elsewhere": elsewhere})
        return Exit.OK
    for file in files:
        print(f"{file.path}  ({file.bytes:,} bytes, {file.age_seconds:.0f} s ago)")
        if file.last:
            print(visible(redact("\n".join(f"    {line}" for line in file.last.splitlines()))))
    for entry in elsewhere:
        print(f"on {entry['host']}: {entry['path']}  ({entry['role']})")
    return Exit.OK


async def _check_run(args: argparse.Namespace) -> None:
    """Raises `UsageError` if the journal can be read and does not have the run."""
    if not is_server(args.journal) and not Path(args.journal).is_file():
        return
    with contextlib.suppress(JournalError):
        async with to_read(args.journal) as journal:
            await run_named(journal, args.run)


def _read(folder: Path, lines: int) -> list[LogFile]:
    files = sorted(folder.glob("*.log"), key=lambda path: (path.stat().st_mtime, path.name))
    now = time.time()
    return [
        LogFile(
            str(path),
            path.stat().st_size,
            max(0.0, now - path.stat().st_mtime),
            log_files.tail(path, lines),
        )
        for path in files
    ]
