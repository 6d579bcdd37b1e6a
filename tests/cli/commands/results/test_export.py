"""`holdfast export`: the same data gives the same bytes, in either format, whole or not at all."""

import csv
import json
import shutil
import signal
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from holdfast.records.exit_codes import Exit
from holdfast.testing import FakeEngine, Fault, FaultKind
from support.cli.shell import CommandLine, end, start

WHATS = ("samples", "trajectories", "failures")
SAMPLE_KEYS = {
    *("task", "group", "sample", "branch", "status", "reason", "token_ids", "loss_mask"),
    *("logprobs", "version_spans", "reward", "advantage", "remove_sample"),
    *("logprobs_mode", "trajectory", "turns", "step_rewards", "truncated"),
    *("prompt_tokens", "completion_tokens", "interrupted"),
}
MAX_MODULES = 111
"""Of Holdfast's, in a process that exports samples."""


@pytest.fixture(scope="module")
def ran(module_engine, tmp_path_factory):
    """A run with outcomes of all kinds, made once."""
    shell = CommandLine(tmp_path_factory.mktemp("export"), module_engine)
    shell.tasks("sum", "long-one", "bug", "crab 🦀\n")
    shell.finished_run("--samples", 2)
    return shell


def lines(exported: bytes) -> list[dict]:
    return [json.loads(line) for line in exported.splitlines()]


@pytest.mark.parametrize("what", WHATS)
def test_parquet_holds_what_jsonl_holds_and_both_are_the_same_every_time(ran, what):
    exported = ran.export(what)
    assert ran.export(what) == exported
    rows = lines(exported)
    assert rows
    columns = ran.export(what, "--format", "parquet")
    assert ran.export(what, "--format", "parquet") == columns
    table = pq.read_table(ran.place / f"{what}.out")
    assert table.column_names == list(rows[0])
    for ours, theirs in zip(table.to_pylist(), rows, strict=True):
        for name, value in theirs.items():
            result = ours[name]
            nested = isinstance(result, str) and not isinstance(value, str)
            data = json.loads(result) if nested else result
            assert (whole(data) if name in ("messages", "turns") else data) == value


def test_an_export_loads_neither_engine_nor_trainer_nor_rollouts(ran):
    program = (
        "import sys; from holdfast.cli.main import main\n"
        "main(['export', 'r', '--what', 'samples', '--out', '-'])\n"
        "print(*(name for name in sys.modules if name.startswith('holdfast')), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ran.place, check=True
    )
    loaded = done.stderr.split()
    assert len(loaded) <= MAX_MODULES, sorted(loaded)
    heavy = ("holdfast.engine.running.engine", "holdfast.training", "holdfast.rollout.context")
    assert not [name for name in loaded if name.startswith(heavy)]


def whole(value):
    """Nested columns as JSONL has them: what is null is absent, and open values are not text."""
    if isinstance(value, list):
        return [whole(item) for item in value]
    if not isinstance(value, dict):
        return value
    result = {name: whole(item) for name, item in value.items() if item is not None}
    for name in result.keys() & {"versions", "usage", "sampling"}:
        result[name] = json.loads(result[name])
    others = json.loads(result.pop("others", "{}"))
    return result | others


def test_tool_calls_are_in_parquet_as_in_jsonl(module_engine, tmp_path):
    shell = CommandLine(tmp_path, module_engine)
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "2", "tool_call_id": "c1"},
    ]
    shell.write("tasks.jsonl", json.dumps({"id": "sum", "messages": messages}))
    shell.finished_run()
    (row,) = lines(shell.export("trajectories"))
    shell.export("trajectories", "--format", "parquet")
    (columns,) = pq.read_table(shell.place / "trajectories.out").to_pylist()
    assert [message.get("tool_calls") for message in row["messages"][:3]] == [None, [call], None]
    assert whole(columns["messages"]) == row["messages"]
    assert whole(columns["turns"]) == row["turns"]


def test_messages_of_parquet_are_nested_columns(ran):
    ran.export("trajectories", "--format", "parquet")
    table = pq.read_table(ran.place / "trajectories.out")
    message = table.schema.field("messages").type.value_type
    assert [field.name for field in message] == [
        *("role", "content", "parts", "reasoning_content", "name", "tool_call_id", "tool_calls"),
        "others",
    ]
    turn = table.schema.field("turns").type.value_type
    assert turn.field("reply").type == message
    assert turn.field("prompt").type.value_type == message
    contents = [message["content"] for message in table.to_pylist()[0]["messages"]]
    assert contents == [m["content"] for m in lines(ran.export("trajectories"))[0]["messages"]]


@pytest.mark.parametrize("what", ["samples", "trajectories", "failures"])
def test_csv_is_csv(ran, what):
    path = ran.place / f"{what}.csv"
    assert ran.holdfast("export", "r", "--what", what, "--out", path).code == 0
    rows = lines(ran.export(what))
    with path.open(encoding="utf-8-sig", newline="") as file:
        results = list(csv.DictReader(file))
    assert [list(row) for row in results] == [list(row) for row in rows]
    for ours, theirs in zip(results, rows, strict=True):
        for name, value in theirs.items():
            if isinstance(value, str) or value is None:
                assert ours[name] == (value or "")
            else:
                assert json.loads(ours[name]) == value


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--what", "rows", "--out", "x.csv"), "--what rows is nested, and CSV is not: use .jsonl"),
        (("--what", "sft", "--out", "x.csv"), "--what sft is nested"),
        (("--what", "samples", "--out", "x.csv", "--format", "jsonl"), "x.csv is to hold jsonl"),
        (("--what", "samples", "--out", "x.xlsx"), "x.xlsx: exports are .jsonl, .parquet or .csv"),
        (("--what", "samples", "--out", "-", "--format", "csv"), "csv wants a file"),
    ],
)
def test_what_is_no_csv_is_refused(ran, arguments, why):
    done = ran.holdfast("export", "r", *arguments)
    assert (done.code, done.out) == (2, "")
    assert why in done.line
    assert not list(ran.place.glob("x.*"))


def test_samples_hold_nothing_that_a_disturbance_could_change(ran):
    rows = lines(ran.export())
    assert all(set(row) == SAMPLE_KEYS for row in rows)
    order = ["sum", "long-one", "bug", "crab 🦀\n"]
    keys = [(order.index(row["task"]), row["sample"], row["branch"]) for row in rows]
    assert keys == sorted(keys)
    assert (2, 0, 0) not in keys, "a bug is not a sample"
    assert (2, 1, 0) in keys, "its sibling is"
    for row in rows:
        assert len(row["token_ids"]) == len(row["loss_mask"]) == len(row["logprobs"])


def test_the_same_seed_gives_the_same_samples_under_any_name_in_any_journal(ran, shell):
    shell.tasks("sum", "long-one", "bug", "crab 🦀\n")
    # Other conditions, and trouble on the way.
    shell.engine.set_faults(Fault(FaultKind.RESET_AFTER, rate=0.5))
    shell.finished_run("--samples", 2, "--concurrency", 1, run="another name", journal="other.db")
    shell.engine.set_faults()
    theirs = shell.export("samples", "--journal", "other.db", run="another name")
    assert theirs == ran.export()


def test_fixed_groups_are_filled_with_placeholders(ran):
    rows = lines(ran.export("samples", "--fixed-groups"))
    assert {(row["task"], row["sample"]) for row in rows if row["task"] == "bug"} == {
        ("bug", 0),
        ("bug", 1),
    }
    (filler,) = [row for row in rows if row["status"] == "ABORTED"]
    assert (filler["token_ids"], filler["loss_mask"], filler["logprobs"]) == ([0, 0], [0], [0.0])
    assert filler["remove_sample"]
    ran.export("samples", "--fixed-groups", "--format", "parquet")


def test_failures_are_exported_with_their_tracebacks(ran):
    first, second = lines(ran.export("failures"))
    assert (first["task"], first["sample"], first["attempt"], second["attempt"]) == ("bug", 0, 1, 2)
    assert first["cause"] == "code"
    assert "agent.py" in first["traceback"]


def test_what_was_written_is_told_to_scripts(ran):
    done = ran.holdfast("export", "r", "--what", "failures", "--out", "f.jsonl", "--json")
    assert json.loads(done.out) == {
        "rows": 2,
        "written": True,
        "out": "f.jsonl",
        "unsettled": 0,
    }
    assert done.err == ""


def test_an_export_that_is_killed_leaves_the_old_file(ran, tmp_path):
    out = tmp_path / "out.jsonl"
    out.write_text("old")
    arguments = ("export", "r", "--what", "samples", "--out", out, "--force")
    done = ran.holdfast(*arguments, env={"HOLDFAST_CRASH": "export.row:2"})
    assert done.code == -signal.SIGKILL
    assert out.read_text() == "old"
    assert ran.holdfast(*arguments).code == 0
    assert out.read_bytes() == ran.export()


def test_an_export_that_cannot_be_finished_leaves_the_old_file_and_no_other(ran, tmp_path):
    copy = tmp_path / "copy.db"
    shutil.copy(ran.journal, copy)
    shell = CommandLine(tmp_path, ran.engine)
    shell.journal = copy
    shell.damage(
        "UPDATE records SET body = zeroblob(9) WHERE position = (SELECT max(position) FROM records)"
    )
    out = tmp_path / "out"
    out.mkdir()
    (out / "s.jsonl").write_text("old")
    for form in ("jsonl", "parquet"):
        done = shell.holdfast(
            "export", "r", "--what", "trajectories", "--out", out / "s.jsonl", "--journal", copy,
            "--format", form, "--force",
        )  # fmt: skip
        assert done.code == Exit.CORRUPT
        assert [path.name for path in out.iterdir()] == ["s.jsonl"]
        assert (out / "s.jsonl").read_text() == "old"


def test_a_link_is_followed_and_a_long_name_is_no_trouble(ran, tmp_path):
    real = tmp_path / ("n" * 250)
    real.write_text("old")
    (tmp_path / "link").symlink_to(real)
    done = ran.holdfast("export", "r", "--what", "failures", "--out", tmp_path / "link", "--force")
    assert done.code == 0, done.err
    assert (tmp_path / "link").is_symlink()
    assert len(lines(real.read_bytes())) == 2


def test_an_unfinished_run_says_how_many_are_missing_and_exports_whole_groups(shell):
    shell.tasks("quick", "slow")
    shell.engine.set_faults(Fault(FaultKind.HANG, matching="slow/1"))
    process = start(*shell.arguments("--samples", 2, "--quiet", "--grace", 0), cwd=shell.place)
    try:
        while (json.loads(shell.holdfast("runs", "--json").out or "[]") or [{}])[0].get(
            "settled"
        ) != 3:
            assert process.poll() is None
        done = shell.holdfast("export", "r", "--what", "samples", "--out", "s.jsonl", "--json")
        assert json.loads(done.out)["unsettled"] == 1
        assert done.line == (
            "holdfast: 1 trajectory is not settled yet; its group is not among the samples"
        )
        rows = lines((shell.place / "s.jsonl").read_bytes())
        assert {row["task"] for row in rows} == {"quick"}
        assert len(lines(shell.export("trajectories"))) == 4
    finally:
        process.terminate()
    assert end(process).code == Exit.TERMINATED


def test_the_journal_itself_is_never_the_target(ran):
    before = ran.export()
    done = ran.holdfast(
        "export", "r", "--what", "samples", "--journal", ran.journal, "--out", ran.journal
    )
    assert done.code == Exit.USAGE
    assert "is the journal itself" in done.line
    assert ran.export() == before


def test_an_export_without_rows_says_why(shell):
    shell.tasks("bug")
    shell.finished_run("--max-retry", 0)
    for name in ("samples.jsonl", "samples.csv", "samples.parquet", "sft.jsonl", "sft.parquet"):
        done = shell.holdfast("export", "r", "--what", name.partition(".")[0], "--out", name)
        assert (done.code, done.out) == (Exit.EMPTY, "")
        assert done.line == (
            "holdfast: nothing was written: of 1 finished trajectory none has a valid outcome"
        )
        assert not (shell.place / name).exists()
    done = shell.holdfast("export", "r", "--what", "samples", "--out", "s.csv", "--json")
    data = json.loads(done.out)
    assert (done.code, data["rows"], data["written"]) == (Exit.EMPTY, 0, False)
    done = shell.holdfast("export", "r", "--what", "samples", "--out", "-")
    assert (done.code, done.out) == (Exit.EMPTY, "")
    shell.tasks("sum")
    shell.finished_run(run="good")
    done = shell.holdfast("export", "good", "--what", "failures", "--out", "failures.jsonl")
    assert done.line == "holdfast: nothing was written: no failure is recorded"


def test_an_export_without_rows_leaves_an_earlier_one_as_it_was(ran):
    for name in ("sft.jsonl", "sft.parquet"):
        arguments = ("export", "r", "--what", "sft", "--out", name)
        assert ran.holdfast(*arguments).code == 0
        before = (ran.place / name).read_bytes()
        done = ran.holdfast(*arguments, "--min-reward", "9e6")
        assert (done.code, done.out) == (Exit.EMPTY, "")
        assert done.line.endswith(f"a reward of 9e+06 or more; {name} is as it was")
        assert (ran.place / name).read_bytes() == before


def test_a_turn_without_logprobs_has_no_mean_of_them(shell: CommandLine) -> None:
    with FakeEngine(mean_length=10, dialect="chat") as engine:
        shell.engine = engine
        assert shell.run("--dialect", "chat").code == 0
    rows = [json.loads(line) for line in shell.export("trajectories").splitlines()]
    assert {turn["mean_logprob"] for row in rows for turn in row["turns"]} == {None}
    done = shell.holdfast("export", "r", "--what", "trajectories", "--out", "t.parquet")
    assert done.code == 0, done.err
    (first, *_) = pq.read_table(shell.journal.with_name("t.parquet")).to_pylist()
    assert first["turns"][0]["mean_logprob"] is None
    assert json.loads(first["turns"][0]["sampling"]) == rows[0]["turns"][0]["sampling"]


CALLING = """
import holdfast
from holdfast.records.message import FunctionCall


async def solve(t: holdfast.Rollout) -> None:
    call = holdfast.ToolCall("c1", FunctionCall("look_up", "{}"))
    t.add(*t.task.messages, holdfast.Message("assistant", tool_calls=(call,)))
    await t.generate()
"""


def test_tool_calls_of_trajectories_are_functions_as_those_of_rows(shell: CommandLine) -> None:
    shell.write("agent.py", CALLING)
    shell.finished_run()
    row = json.loads(shell.export("trajectories").splitlines()[0])
    for message in (row["messages"][-2], row["turns"][0]["prompt"][-1]):
        assert [call["type"] for call in message["tool_calls"]] == ["function"]
