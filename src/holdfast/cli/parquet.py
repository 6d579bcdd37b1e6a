"""Parquet schemas for exports. Needs the extra `parquet`."""

from pathlib import Path
from typing import Any

import msgspec

from holdfast.engine.export import Row, What
from holdfast.records.errors import UsageError

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as error:
    raise UsageError(
        "parquet needs pyarrow: pip install 'holdfast[parquet]', or use --format jsonl"
    ) from error

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
        ("sampled_tokens", pa.int64()),
        ("attempts", pa.int32()),
        ("failures", pa.int32()),
        ("refills", pa.int32()),
        ("forks", pa.string()),
        ("prefix_breaks", pa.int32()),
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
_SCHEMAS = {
    What.SAMPLES: _SAMPLES,
    What.TRAJECTORIES: _TRAJECTORIES,
    What.FAILURES: _FAILURES,
}


def schema(what: What) -> Any:
    return _SCHEMAS[what]


def writer(path: Path, schema: Any) -> Any:
    return pq.ParquetWriter(path, schema)


def columns(rows: list[Row], schema: Any) -> Any:
    """Nested values of open shape become JSON text; arrays stay arrays."""
    return pa.Table.from_pylist([_flat(row, schema) for row in rows], schema=schema)


def _flat(row: Row, schema: Any) -> Row:
    return {
        name: msgspec.json.encode(value).decode()
        if pa.types.is_string(schema.field(name).type) and not isinstance(value, str | None)
        else value
        for name, value in row.items()
    }
