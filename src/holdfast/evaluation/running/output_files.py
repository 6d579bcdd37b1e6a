"""Writes the files of a finished run: its rows and its page."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from holdfast.engine.export.atomic_file import whole_file
from holdfast.engine.export.export import Row, What, rows
from holdfast.engine.export.prices import Prices
from holdfast.evaluation.rows.row import EvalMetadata
from holdfast.evaluation.rows.status import Status
from holdfast.evaluation.stats.verdict import Verdict
from holdfast.journal.sql.journal import Journal
from holdfast.records.encoding.file_name import file_name
from holdfast.records.errors import UsageError
from holdfast.records.run import Run

Decode = Callable[[Sequence[int]], str]


async def write_rows(
    journal: Journal, run: Run, folder: Path, *, metadata: EvalMetadata, verdict: Verdict
) -> None:
    """Writes the finished rows as `RUN.jsonl`, one row for each sample, with the evaluation and its
    score. The file is written as a whole or not at all."""
    evaluation = metadata.model_dump(mode="json", exclude_none=True)
    if verdict.passed is not None:
        evaluation["passed"] = verdict.passed
    with _writing("--holdfast-output-dir", folder):
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / f"{file_name(run.spec.name)}.jsonl"
        with whole_file(target) as part, part.open("wb") as file:
            async for row in rows(journal, run, What.ROWS, apart=True):
                judged = _with_verdict(row, evaluation, verdict)
                file.write(msgspec.json.encode(judged) + b"\n")


def _with_verdict(row: Row, evaluation: Mapping[str, object], verdict: Verdict) -> Row:
    status: Status = Status.eval_finished()
    rollout = Status.model_validate(row["rollout_status"])
    result = row.get("evaluation_result")
    if rollout.is_error():
        status = Status.error(rollout.message, rollout.details)
    elif not isinstance(result, Mapping) or not result.get("is_score_valid", True):
        status = Status.score_invalid()
    written = {**row, "eval_metadata": {**evaluation, "status": status.model_dump(mode="json")}}
    if isinstance(result, Mapping):
        numbers = {"agg_score": verdict.score, "standard_error": verdict.fixed_set_error}
        own = {name: value for name, value in numbers.items() if result.get(name) is None}
        written["evaluation_result"] = {**result, **own}
    return written


async def write_page(
    journal: Journal,
    run: Run,
    folder: Path,
    *,
    verdict: Verdict,
    num_runs: int,
    source: str,
    decode: Decode | None,
    prices: Prices | None = None,
) -> str:
    """Writes the run as one HTML file, and returns its `file://` link."""
    from holdfast.evaluation.report.writer import report_file, write_report

    with _writing("--holdfast-report", folder):
        folder.mkdir(parents=True, exist_ok=True)
        written = await write_report(
            journal,
            run,
            report_file(folder, run.spec.name),
            verdict=verdict,
            num_runs=num_runs,
            source=source,
            decode=decode,
            prices=prices,
        )
        return Path(written.path).absolute().as_uri()


@contextmanager
def _writing(flag: str, folder: Path) -> Iterator[None]:
    """Turns an error of writing into a `UsageError`, which says that the run itself is safe in its
    journal."""
    try:
        yield
    except (OSError, UsageError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(
            f"{flag} {folder} cannot be written to ({why}); the run itself is in the "
            "journal: the same command with another folder writes it from there"
        ) from error
