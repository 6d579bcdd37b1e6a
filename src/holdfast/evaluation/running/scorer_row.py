"""The row that a scorer is shown: the finished one, with what the evaluation says about itself."""

from copy import copy, deepcopy

from msgspec.structs import asdict

from holdfast.evaluation.definition.definition import Definition, Mode
from holdfast.evaluation.rows.completion_params import Setting
from holdfast.evaluation.rows.convert import row_of
from holdfast.evaluation.rows.row import EvalMetadata, EvaluationRow, EvaluationThreshold
from holdfast.evaluation.stats.verdict import Threshold
from holdfast.records.run import RunSpec
from holdfast.records.view import TrajectoryView


def scorer_row(
    view: TrajectoryView, spec: RunSpec, setting: Setting, *, mode: Mode, evaluation: EvalMetadata
) -> EvaluationRow:
    """A new row for each call: a scorer may change it as it likes."""
    row = row_of(_unscored(view), spec)
    metadata = row.input_metadata
    metadata.completion_params = {**(metadata.completion_params or {}), **deepcopy(setting.params)}
    metadata.session_data = {**(metadata.session_data or {}), "mode": mode.value}
    index = view.key.sample // max(1, spec.samples // evaluation.num_runs)
    row.execution_metadata.run_id = f"{spec.name}/{index}"
    row.eval_metadata = evaluation.model_copy(deep=True)
    return row


def eval_metadata_of(
    definition: Definition, *, num_runs: int, threshold: Threshold | None
) -> EvalMetadata:
    """`num_runs` and `threshold` are those of the session, which may change the decorator's."""
    # Not validated: ours may be above the 1 that eval-protocol allows.
    passed = None if threshold is None else EvaluationThreshold.model_construct(**asdict(threshold))
    return EvalMetadata(
        name=definition.function.__name__,
        description=definition.function.__doc__,
        num_runs=num_runs,
        aggregation_method=definition.aggregation.value,
        passed_threshold=passed,
    )


def _unscored(view: TrajectoryView) -> TrajectoryView:
    """Without an earlier scorer's word, which the next one might take for its own."""
    if view.history.scored is None:
        return view
    history = copy(view.history)
    history.scored = None
    return TrajectoryView(view.key, view.task, history)
