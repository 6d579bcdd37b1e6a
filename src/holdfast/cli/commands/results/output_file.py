"""Decides whether the file that `--out` names may be replaced.

A user who types the name of an existing file may not want to lose it. So a file is replaced without
`--force` only if no data is lost. An earlier export is replaced if all its rows are in the new one.
An existing report is replaced, because it can be made again. The files that the run was made from
(its code, tasks, model, checkpoints, configuration) and journals are never replaced.
"""

import argparse
import contextlib
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from zipfile import is_zipfile

from holdfast.cli.setup.config_file import Invocation
from holdfast.cli.setup.journals import refuse_journal
from holdfast.engine.export.atomic_file import target_of
from holdfast.records.errors import UsageError
from holdfast.records.run import Run
from holdfast.rollout.code.load import split

_TITLE = b"\xc2\xb7 Holdfast</title>"
"""Text that each report has in its first bytes."""
_FIRST_BYTES = 1 << 14
_PARQUET = b"PAR1"
_PIECE = 1 << 20
"""The most bytes of a line that are compared at once."""


def output_file(args: argparse.Namespace) -> Path:
    """Returns the file that `--out` names. Raises `UsageError`, before any data is read, if the
    file cannot be written."""
    refuse_journal(Path(args.out), args.journal)
    return target_of(Path(args.out))


def is_folder(out: str) -> bool:
    """Returns whether `--out` names a folder: an existing folder, or a name that ends with a
    slash."""
    return out.endswith("/") or Path(out).is_dir()


def check_report(target: Path, run: Run, args: argparse.Namespace) -> None:
    """Raises `UsageError` if a report must not replace the file."""
    check_source(target, run, args)
    if not is_there(target):
        return
    with target.open("rb") as file:
        is_report = _TITLE in file.read(_FIRST_BYTES)
    if not is_report:
        _refuse_loss(target, "is there, and no report of ours", run, args)


def check_export(target: Path, part: Path, run: Run, args: argparse.Namespace) -> None:
    """Raises `UsageError` if the file `target` has rows or columns that are not in `part`, which is
    to replace it. With `--force`, only the files that the run was made from are protected."""
    if is_there(target) and not has_all_rows(part, target):
        lost = f"is there, with rows or columns that this export of {args.what} does not have"
        _refuse_loss(target, lost, run, args)


def is_there(target: Path) -> bool:
    """Returns whether the file exists and is not empty."""
    return target.exists() and bool(target.stat().st_size)


def check_source(target: Path, run: Run, args: argparse.Namespace) -> None:
    """Raises `UsageError` if the run was made with this file."""
    for path in _sources(run, args):
        if target.exists() and target.samefile(path):
            raise _never(target, path, run)


def _refuse_loss(target: Path, what: str, run: Run, args: argparse.Namespace) -> None:
    for path in _sources(run, args):
        if path.is_dir() and target.resolve().is_relative_to(path.resolve()):
            raise _never(target, path, run)
    if not args.force:
        raise UsageError(
            f"{target} {what}; name another file with --out, or give --force to write over it"
        )


def _never(target: Path, path: Path, run: Run) -> UsageError:
    return UsageError(
        f"{target} is what run {run.spec.name!r} was made with ({path}), and is never "
        "written over; name another file with --out"
    )


def _sources(run: Run, args: argparse.Namespace) -> Iterator[Path]:
    """Yields the configuration file and the files that the run's command names, if they still
    exist."""
    invocation: Invocation | None = getattr(args, "invocation", None)
    if invocation is not None and invocation.config.path is not None:
        yield invocation.config.path
    command = run.spec.command
    if command is None:
        return
    for word in command.words[1:]:
        for text in {word, word.partition("=")[2]} - {""}:
            file = split(text)[0] if ".py" in text else Path(text.removeprefix("@"))
            path = Path(command.folder) / file
            # The path is too long, or contains a null byte.
            with contextlib.suppress(OSError, ValueError):
                if path.exists():
                    yield path


def has_all_rows(new: Path, old: Path) -> bool:
    """Returns whether `new` has every row of `old`, unchanged and in the same order. If a run
    continued, later exports can have new rows between the old ones."""
    if is_zipfile(new):
        from holdfast.convert.inspect_log import has_all_samples

        return has_all_samples(new, old)
    if _is_parquet(new) and _is_parquet(old):
        from holdfast.cli.commands.results.export_parquet import rows_in

        return _is_within(rows_in(old), rows_in(new))
    return _is_within(_lines(old), _lines(new))


def _is_within(old: Iterable[object], new: Iterable[object]) -> bool:
    rest = iter(new)
    # `rest` is an iterator: each search begins behind the last match.
    return all(row in rest for row in old)


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_PARQUET)) == _PARQUET


def _lines(path: Path) -> Iterator[bytes]:
    """Yields the lines of a file. A line that is too long for memory comes in pieces."""
    with path.open("rb") as file:
        yield from iter(partial(file.readline, _PIECE), b"")
