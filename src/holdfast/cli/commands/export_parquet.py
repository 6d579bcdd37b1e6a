"""Parquet schemas for exports. Needs the extra `parquet`."""

from pathlib import Path
from typing import Any

import msgspec

from holdfast.engine.export.export import Row, What
from holdfast.records.errors import UsageError

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as error:
    raise UsageError(
        "parquet needs pyarrow: pip install '.[parquet]' (in the clone), or use --format jsonl"
    ) from error

OTHER_FIELDS = "others"
"""The column for what a task brought along, beside a row or in `extra`: names that no schema can
know."""
_SAMPLES = pa.schema(
    [
        ("task", pa.string()),
        ("group", pa.string()),
        ("sample", pa.int32()),
        ("branch", pa.int32()),
        ("status", pa.string()),
        ("reason", pa.string()),
        ("token_ids", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.int8())),
        ("logprobs", pa.list_(pa.float32())),
        ("version_spans", pa.string()),
        ("reward", pa.float64()),
        ("advantage", pa.float64()),
        ("remove_sample", pa.bool_()),
        ("logprobs_mode", pa.string()),
        ("trajectory", pa.string()),
        ("turns", pa.string()),
        ("step_rewards", pa.string()),
        ("truncated", pa.bool_()),
    ]
)
_TRAJECTORIES = pa.schema(
    [
        ("trajectory", pa.string()),
        ("task", pa.string()),
        ("sample", pa.int32()),
        ("status", pa.string()),
        ("reason", pa.string()),
        ("reward", pa.float64()),
        *((name, pa.string()) for name in ("metrics", "reasons", "messages", "turns", "tools")),
        ("environment_steps", pa.string()),
        ("sampled_tokens", pa.int64()),
        ("attempts", pa.int32()),
        ("failures", pa.int32()),
        ("refills", pa.int32()),
        ("forks", pa.string()),
        ("prefix_breaks", pa.int32()),
        ("refused_calls", pa.string()),
    ]
)
_FAILURES = pa.schema(
    [
        ("trajectory", pa.string()),
        ("task", pa.string()),
        ("sample", pa.int32()),
        ("status", pa.string()),
        ("cause", pa.string()),
        ("retryable", pa.bool_()),
        *((name, pa.string()) for name in ("type", "message", "traceback", "step")),
        ("attempt", pa.int32()),
        ("phase", pa.string()),
    ]
)
_EXTRA = pa.struct(
    [
        ("prompt_ids", pa.list_(pa.int32())),
        ("completion_ids", pa.list_(pa.list_(pa.int32()))),
        ("inference_logprobs", pa.list_(pa.list_(pa.float32()))),
        ("loss_mask", pa.list_(pa.list_(pa.int8()))),
        ("turn_boundaries", pa.list_(pa.list_(pa.int32()))),
        ("completions_text", pa.list_(pa.string())),
        ("truncated", pa.list_(pa.bool_())),
        ("finish_reasons", pa.list_(pa.string())),
        ("rewards", pa.list_(pa.float64())),
        ("samples", pa.list_(pa.int32())),
        ("branch", pa.int32()),
        ("step_rewards", pa.list_(pa.float64())),
        ("logprobs_mode", pa.list_(pa.string())),
        ("version_spans", pa.string()),
        ("failed_samples", pa.string()),
        ("token_turn_traces", pa.string()),
        (OTHER_FIELDS, pa.string()),
    ]
)
_ROWS = pa.schema(
    [
        *((name, pa.string()) for name in ("messages", "tools", "input_metadata")),
        *((name, pa.string()) for name in ("rollout_status", "ground_truth", "evaluation_result")),
        (
            "execution_metadata",
            pa.struct(
                [
                    ("rollout_id", pa.string()),
                    ("run_id", pa.string()),
                    ("usage", pa.string()),
                    ("finish_reason", pa.string()),
                    ("tool_call_count", pa.int32()),
                    ("extra", _EXTRA),
                ]
            ),
        ),
        (OTHER_FIELDS, pa.string()),
    ]
)
_SCHEMAS = {
    What.SAMPLES: _SAMPLES,
    What.ROWS: _ROWS,
    What.TRAJECTORIES: _TRAJECTORIES,
    What.FAILURES: _FAILURES,
}


def schema(what: What) -> Any:
    return _SCHEMAS[what]


def writer(path: Path, schema: Any) -> Any:
    return pq.ParquetWriter(path, schema)


def columns(rows: list[Row], schema: Any) -> Any:
    """Nested values of open shape become JSON text; arrays stay arrays."""
    names = set(schema.names) - {OTHER_FIELDS}
    return pa.Table.from_pylist(
        [_flat(_gather_unknown(row, names), schema) for row in rows], schema=schema
    )


def _flat(row: Row, schema: Any) -> Row:
    """`schema` is one of pyarrow's schemas or struct types: both find a field by its name."""
    return {name: _cell(value, schema.field(name)) for name, value in row.items()}


def _cell(value: object, field: Any) -> object:
    if pa.types.is_struct(field.type) and isinstance(value, dict):
        names = {field.type.field(index).name for index in range(field.type.num_fields)}
        return _flat(_gather_unknown(value, names - {OTHER_FIELDS}), field.type)
    if not pa.types.is_string(field.type) or value is None:
        return value
    # Any JSON may be a ground truth: the text "5" must not read like the number.
    as_is = isinstance(value, str) and field.name != "ground_truth"
    return value if as_is else msgspec.json.encode(value).decode()


def _gather_unknown(value: Row, names: set[str]) -> Row:
    """Fields that are not known go into the column for others, together."""
    unknown = {name: field_value for name, field_value in value.items() if name not in names}
    if not unknown:
        return value
    return {name: field_value for name, field_value in value.items() if name in names} | {
        OTHER_FIELDS: unknown
    }
