"""Options of a session apply to all of its evaluations. If an option is None, each evaluation uses
its own value."""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct, structs

from holdfast.evaluation.definition.flags import PREFIX
from holdfast.records.errors import UsageError


class Options(Struct, frozen=True):
    """Values that the command line or the caller sets for all evaluations."""

    max_rows: int | None = None
    """The number of rows; -1 means all."""
    num_runs: int | None = None
    jsonl_path: str | None = None
    completion_params: Sequence[Mapping[str, object]] | None = None
    input_param: Sequence[Mapping[str, object]] | None = None
    reasoning_effort: str | None = None
    no_op_rollout_processor: bool = False
    policy: Sequence[str] | None = None
    max_concurrency: int | None = None
    max_concurrent_evaluations: int | None = None
    max_retry: int | None = None
    resume: bool = False
    new: bool = False
    retry_failed: bool = False
    fail_on_permanent_failure: bool | None = None
    success_threshold: float | None = None
    se_threshold: float | None = None
    journal: str | None = None
    output_dir: str | None = None
    report: str | None = None
    clustered_se_threshold: float | None = None
    max_cost: float | None = None
    max_tokens_total: int | None = None
    price: str | None = None
    patience: float | None = None
    otel: str | None = None

    def __post_init__(self) -> None:
        if self.resume and self.new:
            raise UsageError("--holdfast-resume and --holdfast-new exclude each other")

    @property
    def overrides(self) -> dict[str, object]:
        """Completion params that take precedence over the params of every setting."""
        merged: dict[str, object] = {}
        for params in self.input_param or ():
            merged |= params
        if self.reasoning_effort is not None:
            merged["reasoning_effort"] = self.reasoning_effort
        return merged


def options_of(values: Mapping[str, object]) -> Options:
    """Makes the options from the values that pytest read from the command line."""
    named = {field.name: values.get(PREFIX + field.name) for field in structs.fields(Options)}
    return msgspec.convert(
        {name: value for name, value in named.items() if value is not None}, Options
    )
