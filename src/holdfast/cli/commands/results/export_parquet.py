"""Parquet schemas for exports. Needs the extra `parquet`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from holdfast.convert.lines import Format
from holdfast.convert.sft import SftLayout
from holdfast.engine.export.export import Row, What
from holdfast.engine.export.nested import OTHER_FIELDS, nested_message
from holdfast.extras import needed_by

with needed_by("parquet (--format jsonl does not)", extra="parquet"):
    import pyarrow as pa
    import pyarrow.parquet as pq

ROWS_PER_GROUP = 256
_CALL = pa.struct(
    [
        ("id", pa.string()),
        ("type", pa.string()),
        ("function", pa.struct([("name", pa.string()), ("arguments", pa.string())])),
    ]
)
_PART = pa.struct(
    [
        ("type", pa.string()),
        ("text", pa.string()),
        ("image_url", pa.struct([("url", pa.string()), ("detail", pa.string())])),
        (OTHER_FIELDS, pa.string()),
    ]
)
_MESSAGE = pa.struct(
    [
        ("role", pa.string()),
        ("content", pa.string()),
        ("parts", pa.list_(_PART)),
        ("reasoning_content", pa.string()),
        ("name", pa.string()),
        ("tool_call_id", pa.string()),
        ("tool_calls", pa.list_(_CALL)),
        (OTHER_FIELDS, pa.string()),
    ]
)
"""See `engine/export/nested.py`."""
_TURN = pa.struct(
    [
        ("step", pa.string()),
        ("prompt", pa.list_(_MESSAGE)),
        ("reply", _MESSAGE),
        ("finish_reason", pa.string()),
        ("prompt_tokens", pa.int64()),
        ("sampled_tokens", pa.int64()),
        ("mean_logprob", pa.float64()),
        ("versions", pa.string()),
        ("model", pa.string()),
        ("tries", pa.int32()),
        ("seconds", pa.float64()),
        ("prefix_break", pa.string()),
        ("logprobs_mode", pa.string()),
        ("usage", pa.string()),
        ("sampling", pa.string()),
        (OTHER_FIELDS, pa.string()),
    ]
)
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
        ("prompt_tokens", pa.int64()),
        ("completion_tokens", pa.int64()),
        ("interrupted", pa.bool_()),
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
        *((name, pa.string()) for name in ("metrics", "reasons")),
        ("messages", pa.list_(_MESSAGE)),
        ("turns", pa.list_(_TURN)),
        ("tools", pa.string()),
        ("environment_steps", pa.string()),
        ("sampled_tokens", pa.int64()),
        ("attempts", pa.int32()),
        ("failures", pa.int32()),
        ("refills", pa.int32()),
        ("forks", pa.string()),
        ("prefix_breaks", pa.int32()),
        ("refused_calls", pa.string()),
        ("usage", pa.string()),
        ("cost", pa.float64()),
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
        ("messages", pa.list_(_MESSAGE)),
        *((name, pa.string()) for name in ("tools", "input_metadata")),
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
                    ("cost_metrics", pa.string()),
                    ("extra", _EXTRA),
                ]
            ),
        ),
        (OTHER_FIELDS, pa.string()),
    ]
)
_PROVENANCE = ("holdfast", pa.string())
_VERL = pa.schema(
    [
        ("uid", pa.string()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("response_ids", pa.list_(pa.int32())),
        ("response_mask", pa.list_(pa.int8())),
        ("response_logprobs", pa.list_(pa.float32())),
        ("reward_score", pa.float64()),
        ("num_turns", pa.int32()),
        ("extra_fields", pa.string()),
    ]
)
_SLIME = pa.schema(
    [
        *((name, pa.int64()) for name in ("group_index", "index", "rollout_id")),
        ("prompt", pa.string()),
        ("tokens", pa.list_(pa.int32())),
        ("response", pa.string()),
        ("response_length", pa.int32()),
        ("label", pa.string()),
        ("reward", pa.float64()),
        ("loss_mask", pa.list_(pa.int8())),
        ("weight_versions", pa.list_(pa.string())),
        ("rollout_log_probs", pa.list_(pa.float32())),
        ("remove_sample", pa.bool_()),
        ("status", pa.string()),
        ("metadata", pa.string()),
    ]
)
_TRL = pa.schema(
    [
        ("prompt_ids", pa.list_(pa.int32())),
        ("completion_ids", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float32())),
        ("env_mask", pa.list_(pa.int8())),
        ("holdfast_reward", pa.float64()),
        _PROVENANCE,
    ]
)
_NEMO_MESSAGE = pa.struct(
    [
        ("role", pa.string()),
        ("content", pa.string()),
        ("token_ids", pa.list_(pa.int32())),
        ("generation_logprobs", pa.list_(pa.float32())),
    ]
)
_NEMO = pa.schema(
    [
        ("message_log", pa.list_(_NEMO_MESSAGE)),
        ("length", pa.int32()),
        ("loss_multiplier", pa.float64()),
        ("idx", pa.int64()),
        ("task_name", pa.string()),
        ("total_reward", pa.float64()),
        ("truncated", pa.bool_()),
        ("extra_env_info", pa.string()),
    ]
)
_TINKER = pa.schema(
    [
        ("model_input", pa.list_(pa.int32())),
        (
            "loss_fn_inputs",
            pa.struct(
                [
                    ("target_tokens", pa.list_(pa.int32())),
                    ("logprobs", pa.list_(pa.float32())),
                    ("advantages", pa.list_(pa.float64())),
                ]
            ),
        ),
        ("mask", pa.list_(pa.int8())),
        ("reward", pa.float64()),
        _PROVENANCE,
    ]
)
_CHAT_MESSAGE = pa.struct(
    [
        ("role", pa.string()),
        ("content", pa.string()),
        ("reasoning_content", pa.string()),
        (
            "tool_calls",
            pa.list_(
                pa.struct(
                    [
                        ("id", pa.string()),
                        ("type", pa.string()),
                        (
                            "function",
                            pa.struct([("name", pa.string()), ("arguments", pa.string())]),
                        ),
                    ]
                )
            ),
        ),
        ("tool_call_id", pa.string()),
        ("name", pa.string()),
    ]
)
_SFT_COLUMNS = {
    SftLayout.MESSAGES: ("messages",),
    SftLayout.PROMPT_COMPLETION: ("prompt", "completion"),
}
_SCHEMAS: dict[What | Format, Any] = {
    Format.VERL: _VERL,
    Format.SLIME: _SLIME,
    Format.TRL: _TRL,
    Format.NEMO: _NEMO,
    Format.TINKER: _TINKER,
    What.SAMPLES: _SAMPLES,
    What.ROWS: _ROWS,
    What.TRAJECTORIES: _TRAJECTORIES,
    What.FAILURES: _FAILURES,
}


def sft_schema(layout: SftLayout) -> Any:
    """With the columns of the layout alone: readers decide by them what a row is."""
    return pa.schema(
        [
            *((name, pa.list_(_CHAT_MESSAGE)) for name in _SFT_COLUMNS[layout]),
            ("tools", pa.string()),
            ("task", pa.string()),
            ("sample", pa.int32()),
            ("reward", pa.float64()),
        ]
    )


def schema(what: What | Format, layout: SftLayout) -> Any:
    if what is Format.SFT:
        return sft_schema(layout)
    return _SCHEMAS[what]


def writer(path: Path, schema: Any) -> Any:
    return pq.ParquetWriter(path, schema)


def rows_in(path: Path) -> Iterator[str]:
    """The schema of a file, and each of its rows; of one that cannot be read, what is wrong."""
    try:
        with pq.ParquetFile(path) as file:
            yield file.schema_arrow.to_string()
            for batch in file.iter_batches(ROWS_PER_GROUP):
                yield from map(str, batch.to_pylist())
    except (pa.ArrowException, OSError) as error:
        yield str(error)


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
        if field.type.equals(_MESSAGE):
            return nested_message(value)
        names = {field.type.field(index).name for index in range(field.type.num_fields)}
        return _flat(_gather_unknown(value, names - {OTHER_FIELDS}), field.type)
    if pa.types.is_list(field.type) and isinstance(value, list):
        return (
            [_cell(item, field.type.value_field) for item in value] if _is_nested(field) else value
        )
    if not pa.types.is_string(field.type) or value is None:
        return value
    # Any JSON may be a ground truth: the text "5" must not read like the number.
    as_is = isinstance(value, str) and field.name != "ground_truth"
    return value if as_is else msgspec.json.encode(value).decode()


def _is_nested(field: Any) -> bool:
    return bool(pa.types.is_struct(field.type.value_type))


def _gather_unknown(value: Row, names: set[str]) -> Row:
    """Fields that are not known go into the column for others, together."""
    unknown = {name: field_value for name, field_value in value.items() if name not in names}
    if not unknown:
        return value
    return {name: field_value for name, field_value in value.items() if name in names} | {
        OTHER_FIELDS: unknown
    }
