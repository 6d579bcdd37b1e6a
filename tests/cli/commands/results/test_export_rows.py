"""`holdfast export --what rows`: EvaluationRows in a file, in either format."""

import functools
import json

import pyarrow.parquet as pq
import pytest

from holdfast.testing import Fault, FaultKind
from support.cli.shell import Lab

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
def ran(module_engine, tmp_path_factory) -> Lab:
    """A run of groups, and one of trajectories with turns."""
    lab = Lab(tmp_path_factory.mktemp("rows"), module_engine)
    lab.finished_run("--samples", 2, run="turns", renderer="bytes")
    lab.write("agent.py", AGENT)
    lab.write("tasks.jsonl", "".join(f"{json.dumps(task)}\n" for task in TASKS))
    lab.finished_run(renderer="bytes")
    return lab


@functools.cache
def rows_of(lab: Lab, *words: str, run: str = "r", what: str = "rows") -> tuple[dict, ...]:
    return tuple(lines(lab.export(what, *words, run=run)))


def lines(exported: bytes) -> list[dict]:
    return [json.loads(line) for line in exported.splitlines()]


def test_the_processors_n_is_the_number_of_samples(ran):
    for row in rows_of(ran):
        extra = row["execution_metadata"]["extra"]
        assert extra["samples"] == [0, 1, 2]
        assert row["input_metadata"]["completion_params"]["n"] == 3
        assert max(len(ids) for ids in extra["completion_ids"]) <= 16


def test_rows_hold_the_tokens_of_the_samples(ran):
    samples = {(one["task"], one["sample"]): one for one in rows_of(ran, what="samples")}
    for row in rows_of(ran):
        extra = row["execution_metadata"]["extra"]
        for sample, ids, reward in zip(
            extra["samples"], extra["completion_ids"], extra["rewards"], strict=True
        ):
            one = samples[row["input_metadata"]["row_id"], sample]
            assert one["token_ids"] == extra["prompt_ids"] + ids
            assert one["reward"] == reward


@pytest.mark.parametrize("run", ["r", "turns"])
@pytest.mark.parametrize("more", [(), ("--with-turn-traces",)])
def test_parquet_holds_what_jsonl_holds(ran, run, more):
    rows = rows_of(ran, *more, run=run)
    ran.export("rows", *more, "--format", "parquet", run=run)
    found = pq.read_table(ran.place / "rows.out").to_pylist()
    assert [read_back(row) for row in found] == list(rows)


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
    found = {name: whole(item) for name, item in value.items() if item is not None}
    others = json.loads(found.pop("others", "{}"))
    return found | others


def present(row: dict) -> dict:
    return {name: value for name, value in row.items() if value is not None}


def test_rows_are_the_same_bytes_every_time_and_after_trouble(ran, lab):
    exported = ran.export("rows")
    assert ran.export("rows") == exported
    lab.write("agent.py", AGENT)
    lab.write("tasks.jsonl", "".join(f"{json.dumps(task)}\n" for task in TASKS))
    lab.engine.set_faults(Fault(FaultKind.RESET_AFTER, rate=0.5))
    lab.finished_run("--concurrency", 1, renderer="bytes")
    lab.engine.set_faults()
    assert lab.export("rows") == exported


def test_what_goes_together_is_told(ran):
    for words, why in (
        (("--what", "samples", "--with-turn-traces"), "--with-turn-traces goes with --what rows"),
        (("--what", "rows", "--fixed-groups"), "--fixed-groups goes with --what samples"),
    ):
        done = ran.holdfast("export", "r", "--out", "x.jsonl", *words)
        assert done.code == 2
        assert why in done.err
        assert not (ran.place / "x.jsonl").exists()
