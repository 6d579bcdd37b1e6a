"""`holdfast export --what rows`: EvaluationRows in a file, in either format."""

import functools
import json

import pyarrow.parquet as pq
import pytest

from holdfast.testing import Fault, FaultKind
from support.cli.shell import CommandLine

AGENT = """
from holdfast.rollout.processors.training import TrainingRolloutProcessor

rollout = TrainingRolloutProcessor({"model": "fake", "max_tokens": 16, "temperature": 1.0, "n": 3})


def score(trajectory):
    return float(len(trajectory.reply))
"""
TOOL = {"type": "function", "function": {"name": "count"}}
TASKS = [
    {"id": "number", "prompt": "five?", "ground_truth": 5, "extra": {"level": 2, "others": 1}},
    {"id": "text", "prompt": "five?", "ground_truth": "5", "tools": [TOOL]},
    {"id": "none", "messages": [{"role": "user", "content": "🦀"}], "metadata": {"k": 1}},
]


@pytest.fixture(scope="module")
def ran(module_engine, tmp_path_factory) -> CommandLine:
    """A run of groups, and one of trajectories with turns."""
    shell = CommandLine(tmp_path_factory.mktemp("rows"), module_engine)
    shell.finished_run("--samples", 2, run="turns", renderer="bytes")
    shell.write("agent.py", AGENT)
    shell.write("tasks.jsonl", "".join(f"{json.dumps(task)}\n" for task in TASKS))
    shell.finished_run(renderer="bytes")
    return shell


@functools.cache
def rows_of(
    shell: CommandLine, *arguments: str, run: str = "r", what: str = "rows"
) -> tuple[dict, ...]:
    return tuple(lines(shell.export(what, *arguments, run=run)))


def lines(exported: bytes) -> list[dict]:
    return [json.loads(line) for line in exported.splitlines()]


def test_the_processors_n_is_the_number_of_samples(ran):
    for row in rows_of(ran):
        extra = row["execution_metadata"]["extra"]
        assert extra["samples"] == [0, 1, 2]
        assert row["input_metadata"]["completion_params"]["n"] == 3
        assert max(len(ids) for ids in extra["completion_ids"]) <= 16


def test_rows_hold_the_tokens_of_the_samples(ran):
    samples = {(row["task"], row["sample"]): row for row in rows_of(ran, what="samples")}
    for row in rows_of(ran):
        extra = row["execution_metadata"]["extra"]
        for sample, ids, reward in zip(
            extra["samples"], extra["completion_ids"], extra["rewards"], strict=True
        ):
            item = samples[row["input_metadata"]["row_id"], sample]
            assert item["token_ids"] == extra["prompt_ids"] + ids
            assert item["reward"] == reward


@pytest.mark.parametrize("run", ["r", "turns"])
@pytest.mark.parametrize("more", [(), ("--with-turn-traces",)])
def test_parquet_holds_what_jsonl_holds(ran, run, more):
    rows = rows_of(ran, *more, run=run)
    ran.export("rows", *more, "--format", "parquet", run=run)
    results = pq.read_table(ran.place / "rows.out").to_pylist()
    assert [read_back(row) for row in results] == list(rows)


def read_back(row: dict) -> dict:
    """A parquet row as it is in JSONL: columns of text are JSON, but for plain strings."""
    row = present(row)
    row["messages"] = [whole(message) for message in row["messages"]]
    for name in row.keys() - {"execution_metadata", "messages"}:
        row[name] = json.loads(row[name])
    metadata = row["execution_metadata"] = present(row["execution_metadata"])
    metadata["usage"] = json.loads(metadata["usage"])
    extra = metadata["extra"] = present(metadata["extra"])
    for name in extra.keys() & {"version_spans", "token_turn_traces", "failed_samples"}:
        extra[name] = json.loads(extra[name])
    extra |= json.loads(extra.pop("others", "{}"))
    return row | row.pop("others", {})


def whole(value):
    """Nested columns as JSONL has them."""
    if isinstance(value, list):
        return [whole(item) for item in value]
    if not isinstance(value, dict):
        return value
    result = {name: whole(item) for name, item in value.items() if item is not None}
    others = json.loads(result.pop("others", "{}"))
    return result | others


def present(row: dict) -> dict:
    return {name: value for name, value in row.items() if value is not None}


def test_rows_are_the_same_bytes_every_time_and_after_trouble(ran, shell):
    exported = ran.export("rows")
    assert ran.export("rows") == exported
    shell.write("agent.py", AGENT)
    shell.write("tasks.jsonl", "".join(f"{json.dumps(task)}\n" for task in TASKS))
    shell.engine.set_faults(Fault(FaultKind.RESET_AFTER, rate=0.5))
    shell.finished_run("--concurrency", 1, renderer="bytes")
    shell.engine.set_faults()
    assert shell.export("rows") == exported


def test_what_goes_together_is_told(ran):
    for arguments, why in (
        (("--what", "samples", "--with-turn-traces"), "--with-turn-traces goes with --what rows"),
        (("--what", "rows", "--fixed-groups"), "--fixed-groups goes with --what samples"),
    ):
        done = ran.holdfast("export", "r", "--out", "x.jsonl", *arguments)
        assert done.code == 2
        assert why in done.err
        assert not (ran.place / "x.jsonl").exists()
