"""Written: the files that a session leaves of a finished run, its rows and its page."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from holdfast.engine.export import What, rows
from holdfast.evaluation.verdict import Verdict
from holdfast.journal.journal import Journal
from holdfast.records.run import Run

Decode = Callable[[Sequence[int]], str]


async def write_rows(journal: Journal, run: Run, folder: Path) -> None:
    """The finished rows as `RUN.jsonl`, one for each sample; whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    beside = folder / f".{run.spec.name}.{os.getpid()}"
    with beside.open("wb") as file:
        async for row in rows(journal, run, What.ROWS, apart=True):
            file.write(msgspec.json.encode(row) + b"\n")
    beside.replace(folder / f"{run.spec.name}.jsonl")


async def write_page(
    journal: Journal,
    run: Run,
    folder: Path,
    *,
    verdict: Verdict,
    num_runs: int,
    source: str,
    decode: Decode | None,
) -> None:
    """The run as one HTML file."""
    from holdfast.evaluation.report import report_file, write_report

    folder.mkdir(parents=True, exist_ok=True)
    await write_report(
        journal,
        run,
        report_file(folder, run.spec.name),
        verdict=verdict,
        num_runs=num_runs,
        source=source,
        decode=decode,
    )
