"""Files of data sets: what exports wrote is read again."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.cli.commands.results.export_parquet import columns, schema
from holdfast.convert.sft import SftLayout
from holdfast.engine.export.export import What
from holdfast.tasks.read import read_tasks

MESSAGES = [
    {"role": "system", "content": "Look."},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "What is it?"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
            {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
        ],
    },
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "hm",
        "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        ],
    },
    {"role": "tool", "content": "4", "tool_call_id": "c", "control_plane_step": {"step": 0}},
]


@pytest.mark.parametrize("what", [What.ROWS, What.TRAJECTORIES])
def test_messages_of_an_export_are_read_again_as_they_were(tmp_path, what):
    table = columns([{"messages": MESSAGES}], schema(what, SftLayout.MESSAGES))
    pq.write_table(table, tmp_path / "out.parquet")
    (task,) = read_tasks(tmp_path / "out.parquet")
    expected = read_tasks([MESSAGES])[0].messages
    assert task.messages == expected
    assert task.messages[1].content == MESSAGES[1]["content"]


def test_messages_in_a_flat_table_are_json_text(tmp_path):
    table = pa.table({"messages": [json.dumps(MESSAGES)]})
    pq.write_table(table, tmp_path / "flat.parquet")
    assert read_tasks(tmp_path / "flat.parquet")[0].messages == read_tasks([MESSAGES])[0].messages
