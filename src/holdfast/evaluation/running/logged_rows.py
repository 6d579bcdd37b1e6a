"""JournalDatasetLogger stores each logged row as its own run, and reads all rows of a journal."""

from pathlib import Path

from holdfast.engine.export.export import What, rows
from holdfast.evaluation.data.dataset import Dataset
from holdfast.evaluation.definition.definition import Definition, Mode, variants_of
from holdfast.evaluation.definition.options import Options
from holdfast.evaluation.eval_protocol.basic import NoOpRolloutProcessor
from holdfast.evaluation.eval_protocol.dataset_logger import DatasetLogger
from holdfast.evaluation.eval_protocol.row_processor import is_at_work
from holdfast.evaluation.rows.convert import row_from
from holdfast.evaluation.rows.result import EvaluateResult
from holdfast.evaluation.rows.row import EvaluationRow
from holdfast.evaluation.running.experiment import Experiment, perform_async
from holdfast.evaluation.running.resume import limited
from holdfast.evaluation.running.session import EvaluationSession
from holdfast.journal import opened_journal
from holdfast.journal.sql.journal import Journal
from holdfast.rollout.threads.blocking import run_blocking

PREFIX = "logged."


class JournalDatasetLogger(DatasetLogger):
    """Stores each row in a journal, as a run with the name `logged.ID`, for `holdfast show` and
    `holdfast export --what rows`. `log` stores nothing while a processor works on a row, because
    the row that the processor returns is stored in any case."""

    is_journal = True

    def __init__(self, journal: str | Path | None = None):
        """`journal` is by default the journal of the evaluations in the current folder."""
        self._options = Options(journal=None if journal is None else str(journal))

    def log(self, row: EvaluationRow) -> None:
        if not is_at_work():
            experiment = experiment_of(row.model_copy(deep=True), self._options)
            run_blocking(lambda: perform_async(experiment))

    def read(self, rollout_id: str | None = None) -> list[EvaluationRow]:
        logged = run_blocking(self._rows)
        if rollout_id is None:
            return logged
        return [row for row in logged if row.execution_metadata.rollout_id == rollout_id]

    async def _rows(self) -> list[EvaluationRow]:
        async with opened_journal(EvaluationSession(self._options).journal()) as journal:
            return await rows_in(journal)


default_logger: DatasetLogger = JournalDatasetLogger()


def experiment_of(row: EvaluationRow, options: Options) -> Experiment:
    """Returns an experiment that generates nothing and gives the row its own score."""
    metadata = row.execution_metadata
    # A missing id is stored once, because a newly made id would differ each time.
    metadata.rollout_id = name = metadata.rollout_id or str(row.input_metadata.row_id)
    processor = NoOpRolloutProcessor()
    definition = Definition(
        function=own_result,
        mode=Mode.POINTWISE,
        datasets=(Dataset(([row],)),),
        completion_params=(),
        keywords=(),
        processor=processor,
    )
    return Experiment(
        definition=definition,
        variant=variants_of(definition)[0],
        name=limited(f"{PREFIX}{name}"),
        session=EvaluationSession(options),
    )


def own_result(row: EvaluationRow) -> EvaluateResult:
    if row.evaluation_result is not None:
        return row.evaluation_result
    return EvaluateResult(score=0.0, is_score_valid=False, reason="logged without a result")


async def rows_in(journal: Journal) -> list[EvaluationRow]:
    """Returns the rows of every run. If a row was logged several times, the last one counts."""
    by_id: dict[str, EvaluationRow] = {}
    for listed in await journal.runs():
        run = await journal.find_run(listed.name)
        assert run is not None, "it is listed"
        if listed.name.startswith(PREFIX):
            several = [row_from(task) for task in await journal.tasks(run)]
        else:
            exported = rows(journal, run, What.ROWS, apart=True)
            several = [EvaluationRow.model_validate(row_fields) async for row_fields in exported]
        for row in several:
            by_id[str(row.execution_metadata.rollout_id)] = row
    return list(by_id.values())
