"""Chooses where traces are written. ATIF documents and Inspect logs can be written into a folder.

In a folder, each ATIF document has its own file, and an Inspect log has the name that Inspect would
give it. A file whose content would change is not replaced without `--force`.
"""

import argparse
import hashlib
from pathlib import Path
from urllib.parse import quote

import msgspec

from holdfast.cli.commands.results.output_file import is_folder
from holdfast.convert.lines import Format
from holdfast.engine.export.atomic_file import whole_file
from holdfast.engine.export.export import Row
from holdfast.records.errors import UsageError
from holdfast.records.run import Run

_ENDING = ".eval"
_MAX_NAME = 120
"""The most characters of a task's id in a file name. A longer id is cut and ends with its
digest."""


def check_place(what: Format, args: argparse.Namespace) -> None:
    """Raises `UsageError` if `--out` or `--format` does not fit the kind of trace."""
    if args.format not in (None, "jsonl") or (what is Format.INSPECT and args.format):
        raise UsageError(f"--what {what} has one format of its own: leave --format out")
    if is_folder(args.out):
        return
    if what is Format.INSPECT and Path(args.out).suffix != _ENDING:
        raise UsageError(
            f"--what inspect writes an {_ENDING} file: name it so, or name a folder: logs/"
        )
    if what is Format.ATIF and args.out != "-" and Path(args.out).suffix != ".jsonl":
        raise UsageError("--what atif writes a folder or a .jsonl file: --out traces/")


def log_in(folder: Path, run: Run) -> Path:
    """Returns the path of the run's log, and creates the folder."""
    from holdfast.convert.inspect_log import log_name  # Imported only for this kind of export.

    _make(folder)
    return folder / log_name(run)


class AtifFolder:
    """Writes each document to a file of its own."""

    def __init__(self, folder: Path, *, force: bool):
        _make(folder)
        self._folder, self._force = folder, force

    def write(self, row: Row) -> None:
        target, content = self._folder / _name(row), msgspec.json.encode(row)
        if target.is_file() and target.read_bytes() == content:
            return
        if target.exists() and not self._force:
            raise UsageError(
                f"{target} is there with other content; name another folder with --out, or give "
                "--force to write over it"
            )
        with whole_file(target) as part:
            part.write_bytes(content)

    def close(self) -> None:
        """Does nothing, because each file is closed already."""


def _name(row: Row) -> str:
    extra = row["extra"]
    assert isinstance(extra, dict), "documents of ours have it"
    task = quote(str(extra["task"]), safe=" ")
    if len(task) > _MAX_NAME:
        task = task[:_MAX_NAME] + hashlib.sha256(task.encode()).hexdigest()[:16]
    return f"{task}-{extra['sample']}.json"


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder} cannot be made: {error.strerror or error}") from error
