"""A row that somebody logs, as a run of its own; and all rows of a journal."""

from holdfast.engine.export.export import What, rows
from holdfast.evaluation.data.dataset import Dataset
from holdfast.evaluation.definition.definition import Definition, Mode, variants_of
from holdfast.evaluation.definition.options import Options
from holdfast.evaluation.eval_protocol.basic import NoOpRolloutProcessor
from holdfast.evaluation.rows.convert import row_from
from holdfast.evaluation.rows.result import EvaluateResult
from holdfast.evaluation.rows.row import EvaluationRow
from holdfast.evaluation.running.experiment import Experiment
from holdfast.evaluation.running.resume import limited
from holdfast.evaluation.running.session import EvaluationSession
from holdfast.journal.journal import Journal

PREFIX = "logged."


def experiment_of(row: EvaluationRow, journal: str) -> Experiment:
    """Generates nothing; its score is the row's own."""
    metadata = row.execution_metadata
    # What was not said counts as said: an id that is made anew would be another each time.
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
        session=EvaluationSession(Options(journal=journal)),
    )


def own_result(row: EvaluationRow) -> EvaluateResult:
    if row.evaluation_result is not None:
        return row.evaluation_result
    return EvaluateResult(score=0.0, is_score_valid=False, reason="logged without a result")


async def rows_in(journal: Journal) -> list[EvaluationRow]:
    """Of every run; of a row that was logged several times, the last."""
    found: dict[str, EvaluationRow] = {}
    for listed in await journal.runs():
        run = await journal.find_run(listed.name)
        assert run is not None, "it is listed"
        if listed.name.startswith(PREFIX):
            several = [row_from(task) for task in await journal.tasks(run)]
        else:
            exported = rows(journal, run, What.ROWS, apart=True)
            several = [EvaluationRow.model_validate(row_fields) async for row_fields in exported]
        for row in several:
            found[str(row.execution_metadata.rollout_id)] = row
    return list(found.values())
