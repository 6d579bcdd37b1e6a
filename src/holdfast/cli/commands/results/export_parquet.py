"""Writes exports as Parquet files, and defines their schemas. Needs the extra `parquet`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from holdfast.convert.lines import Format
from holdfast.convert.provenance import KEY
from holdfast.convert.sft import SftLayout
from holdfast.engine.export.export import Row, What
from holdfast.engine.export.nested import OTHER_FIELDS, nested_message
from holdfast.extras import needed_by

with needed_by("parquet (--format jsonl does not)", extra="parquet"):
    import pyarrow as pa
    import pyarrow.parquet as pq

ROWS_PER_GROUP = 256
_TEXT, _BOOL = pa.string(), pa.bool_()
_INT, _LONG, _REAL = pa.int32(), pa.int64(), pa.float64()
_TEXTS, _BOOLS, _INTS, _REALS = map(pa.list_, (_TEXT, _BOOL, _INT, _REAL))
_MASK, _LOGPROBS = pa.list_(pa.int8()), pa.list_(pa.float32())


def _columns(*described: tuple[str, Any]) -> list[tuple[str, Any]]:
    """Returns columns with their types. Each of `described` has the names of some columns,
    separated by spaces, and the type of these columns."""
    return [(name, kind) for names, kind in described for name in names.split()]


_FUNCTION = pa.struct(_columns(("name arguments", _TEXT)))
_CALL = pa.struct(_columns(("id type", _TEXT), ("function", _FUNCTION)))
_IMAGE = pa.struct(_columns(("url detail", _TEXT)))
_PART = pa.struct(_columns(("type text", _TEXT), ("image_url", _IMAGE), (OTHER_FIELDS, _TEXT)))
_MESSAGE = pa.struct(
    _columns(
        ("role content", _TEXT),
        ("parts", pa.list_(_PART)),
        ("reasoning_content name tool_call_id", _TEXT),
        ("tool_calls", pa.list_(_CALL)),
        (OTHER_FIELDS, _TEXT),
    )
)
"""See `engine/export/nested.py`."""
_TURN = pa.struct(
    _columns(
        ("step", _TEXT),
        ("prompt", pa.list_(_MESSAGE)),
        ("reply", _MESSAGE),
        ("finish_reason", _TEXT),
        ("prompt_tokens sampled_tokens", _LONG),
        ("mean_logprob", _REAL),
        ("versions model", _TEXT),
        ("tries", _INT),
        ("seconds", _REAL),
        (f"prefix_break logprobs_mode usage sampling {OTHER_FIELDS}", _TEXT),
    )
)
_SAMPLES = pa.schema(
    _columns(
        ("task group", _TEXT),
        ("sample branch", _INT),
        ("status reason", _TEXT),
        ("token_ids", _INTS),
        ("loss_mask", _MASK),
        ("logprobs", _LOGPROBS),
        ("version_spans", _TEXT),
        ("reward advantage", _REAL),
        ("remove_sample", _BOOL),
        ("logprobs_mode trajectory turns step_rewards", _TEXT),
        ("truncated", _BOOL),
        ("prompt_tokens completion_tokens", _LONG),
        ("interrupted", _BOOL),
    )
)
_TRAJECTORIES = pa.schema(
    _columns(
        ("trajectory task", _TEXT),
        ("sample", _INT),
        ("status reason", _TEXT),
        ("reward", _REAL),
        ("metrics reasons", _TEXT),
        ("messages", pa.list_(_MESSAGE)),
        ("turns", pa.list_(_TURN)),
        ("tools environment_steps", _TEXT),
        ("sampled_tokens", _LONG),
        ("attempts failures refills", _INT),
        ("forks", _TEXT),
        ("prefix_breaks", _INT),
        ("refused_calls usage", _TEXT),
        ("cost", _REAL),
    )
)
_FAILURES = pa.schema(
    _columns(
        ("trajectory task", _TEXT),
        ("sample", _INT),
        ("status cause", _TEXT),
        ("retryable", _BOOL),
        ("type message traceback step", _TEXT),
        ("attempt", _INT),
        ("phase", _TEXT),
    )
)
_EXTRA = pa.struct(
    _columns(
        ("prompt_ids", _INTS),
        ("completion_ids", pa.list_(_INTS)),
        ("inference_logprobs", pa.list_(_LOGPROBS)),
        ("loss_mask", pa.list_(_MASK)),
        ("turn_boundaries", pa.list_(_INTS)),
        ("completions_text", _TEXTS),
        ("truncated", _BOOLS),
        ("finish_reasons", _TEXTS),
        ("rewards", _REALS),
        ("samples", _INTS),
        ("branch", _INT),
        ("step_rewards", _REALS),
        ("logprobs_mode", _TEXTS),
        (f"version_spans failed_samples token_turn_traces {OTHER_FIELDS}", _TEXT),
    )
)
_EXECUTION = pa.struct(
    _columns(
        ("rollout_id run_id usage finish_reason", _TEXT),
        ("tool_call_count", _INT),
        ("cost_metrics", _TEXT),
        ("extra", _EXTRA),
    )
)
_ROWS = pa.schema(
    _columns(
        ("messages", pa.list_(_MESSAGE)),
        ("tools input_metadata rollout_status ground_truth evaluation_result", _TEXT),
        ("execution_metadata", _EXECUTION),
        (OTHER_FIELDS, _TEXT),
    )
)
_VERL = pa.schema(
    _columns(
        ("uid", _TEXT),
        ("prompt_ids response_ids", _INTS),
        ("response_mask", _MASK),
        ("response_logprobs", _LOGPROBS),
        ("reward_score", _REAL),
        ("num_turns", _INT),
        ("extra_fields", _TEXT),
    )
)
_SLIME = pa.schema(
    _columns(
        ("group_index index rollout_id", _LONG),
        ("prompt", _TEXT),
        ("tokens", _INTS),
        ("response", _TEXT),
        ("response_length", _INT),
        ("label", _TEXT),
        ("reward", _REAL),
        ("loss_mask", _MASK),
        ("weight_versions", _TEXTS),
        ("rollout_log_probs", _LOGPROBS),
        ("remove_sample", _BOOL),
        ("status metadata", _TEXT),
    )
)
_TRL = pa.schema(
    _columns(
        ("prompt_ids completion_ids", _INTS),
        ("logprobs", _LOGPROBS),
        ("env_mask", _MASK),
        ("holdfast_reward", _REAL),
        (KEY, _TEXT),
    )
)
_NEMO_MESSAGE = pa.struct(
    _columns(("role content", _TEXT), ("token_ids", _INTS), ("generation_logprobs", _LOGPROBS))
)
_NEMO = pa.schema(
    _columns(
        ("message_log", pa.list_(_NEMO_MESSAGE)),
        ("length", _INT),
        ("loss_multiplier", _REAL),
        ("idx", _LONG),
        ("task_name", _TEXT),
        ("total_reward", _REAL),
        ("truncated", _BOOL),
        ("extra_env_info", _TEXT),
    )
)
_LOSS_INPUTS = pa.struct(
    _columns(("target_tokens", _INTS), ("logprobs", _LOGPROBS), ("advantages", _REALS))
)
_TINKER = pa.schema(
    _columns(
        ("model_input", _INTS),
        ("loss_fn_inputs", _LOSS_INPUTS),
        ("mask", _MASK),
        ("reward", _REAL),
        (KEY, _TEXT),
    )
)
_CHAT_MESSAGE = pa.struct(
    _columns(
        ("role content reasoning_content", _TEXT),
        ("tool_calls", pa.list_(_CALL)),
        ("tool_call_id name", _TEXT),
    )
)
_SFT_COLUMNS = {
    SftLayout.MESSAGES: "messages",
    SftLayout.PROMPT_COMPLETION: "prompt completion",
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


def schema(what: What | Format, layout: SftLayout) -> Any:
    """Returns the schema of an export. The schema for supervised fine-tuning has only the columns
    of the layout, because readers recognize a row's kind by its columns."""
    if what is not Format.SFT:
        return _SCHEMAS[what]
    conversation = (_SFT_COLUMNS[layout], pa.list_(_CHAT_MESSAGE))
    return pa.schema(
        _columns(conversation, ("tools task", _TEXT), ("sample", _INT), ("reward", _REAL))
    )


class ParquetFile:
    """A file with row groups of a fixed size and a schema that does not depend on the data."""

    def __init__(self, path: Path, schema: Any):
        self._schema = schema
        self._writer = pq.ParquetWriter(path, schema)
        self._rows: list[Row] = []

    def write(self, row: Row) -> None:
        self._rows.append(row)
        if len(self._rows) >= ROWS_PER_GROUP:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(columns(self._rows, self._schema))
            self._rows = []

    def close(self) -> None:
        self._flush()
        self._writer.close()


def rows_in(path: Path) -> Iterator[str]:
    """Yields the schema and the rows of a file as text. If the file cannot be read, yields the
    reason."""
    try:
        with pq.ParquetFile(path) as file:
            yield file.schema_arrow.to_string()
            for batch in file.iter_batches(ROWS_PER_GROUP):
                yield from map(str, batch.to_pylist())
    except (pa.ArrowException, OSError) as error:
        yield str(error)


def columns(rows: list[Row], schema: Any) -> Any:
    """Converts rows to a table. Nested values without a fixed shape become JSON text; arrays stay
    arrays."""
    names = set(schema.names) - {OTHER_FIELDS}
    return pa.Table.from_pylist(
        [_flat(_gather_unknown(row, names), schema) for row in rows], schema=schema
    )


def _flat(row: Row, schema: Any) -> Row:
    """Converts each value of a row to the type of its field in `schema`, which is a pyarrow schema
    or a struct type."""
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
    # A ground truth may be any JSON, so the text "5" must differ from the number 5.
    as_is = isinstance(value, str) and field.name != "ground_truth"
    return value if as_is else msgspec.json.encode(value).decode()


def _is_nested(field: Any) -> bool:
    return bool(pa.types.is_struct(field.type.value_type))


def _gather_unknown(value: Row, names: set[str]) -> Row:
    """Moves the fields that are not in `names` into one column for other fields."""
    unknown = {name: field_value for name, field_value in value.items() if name not in names}
    if not unknown:
        return value
    return {name: field_value for name, field_value in value.items() if name in names} | {
        OTHER_FIELDS: unknown
    }
