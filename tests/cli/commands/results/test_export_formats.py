"""`holdfast export --what verl|slime|trl|nemo|tinker|sft`: rows of other trainers in a file."""

import json

import pyarrow.parquet as pq
import pytest

from holdfast.convert import from_nemo, from_slime, from_trl
from holdfast.convert.provenance import restored
from holdfast.records.exit_codes import Exit
from support.cli.shell import CommandLine

FORMATS = ("verl", "slime", "trl", "nemo", "tinker", "sft")


@pytest.fixture(scope="module")
def ran(module_engine, tmp_path_factory):
    shell = CommandLine(tmp_path_factory.mktemp("formats"), module_engine)
    shell.tasks("sum", "long-one", "bug")
    shell.finished_run("--samples", 2)
    return shell


def lines(exported: bytes) -> list[dict]:
    return [json.loads(line) for line in exported.splitlines()]


@pytest.mark.parametrize("what", FORMATS)
def test_parquet_holds_what_jsonl_holds(ran, what):
    rows = lines(ran.export(what))
    assert rows
    ran.export(what, "--format", "parquet")
    table = pq.read_table(ran.place / f"{what}.out").to_pylist()
    for ours, theirs in zip(table, rows, strict=True):
        for name, value in theirs.items():
            result = ours[name]
            nested = isinstance(result, str) and not isinstance(value, str)
            assert _without_none(json.loads(result) if nested else result) == _without_none(value)


def _without_none(value):
    if isinstance(value, dict):
        return {name: _without_none(v) for name, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_none(item) for item in value]
    return value


def test_every_format_gives_the_samples_back(ran):
    samples = lines(ran.export("samples"))
    expected = [(row["token_ids"], row["loss_mask"], row["reward"]) for row in samples]
    trl = lines(ran.export("trl"))
    columns = {name: [row[name] for row in trl] for name in trl[0]}
    results = {
        "trl": from_trl(columns),
        "slime": from_slime([[row] for row in lines(ran.export("slime"))]),
        "nemo": from_nemo(lines(ran.export("nemo"))),
        "verl": [
            restored(
                row["extra_fields"]["holdfast"],
                token_ids=row["prompt_ids"] + row["response_ids"],
                loss_mask=[0] * len(row["prompt_ids"]) + row["response_mask"],
                logprobs=[0.0] * len(row["prompt_ids"]) + row["response_logprobs"],
                reward=row["reward_score"],
            )
            for row in lines(ran.export("verl"))
        ],
    }
    for what, read in results.items():
        assert [(s.token_ids, s.loss_mask, s.reward) for s in read] == expected, what


def test_groups_are_filled_where_the_trainer_leaves_placeholders_out(ran):
    filled = lines(ran.export("trl", "--fixed-groups"))
    assert [row["holdfast_reward"] for row in filled].count(None) == 1, "the bug's"
    assert len(filled) == 6
    slime = lines(ran.export("slime", "--fixed-groups"))
    assert [row["status"] for row in slime].count("aborted") == 1


def test_conversations_can_be_chosen_by_reward(ran):
    assert lines(ran.export("sft", "--min-reward", "1000000")) == []
    done = ran.holdfast("export", "r", "--what", "sft", "--min-reward", "9e6", "--out", "-")
    assert "nothing was written: of 5 valid outcomes none has a reply and a reward of" in done.line
    rows = lines(ran.export("sft", "--sft-layout", "prompt_completion"))
    assert set(rows[0]) >= {"prompt", "completion"}


@pytest.mark.parametrize(
    ("what", "option"),
    [
        ("verl", ["--fixed-groups"]),
        ("sft", ["--logprobs", "raw"]),
        ("samples", ["--min-reward", "1"]),
        ("tinker", ["--branches", "longest"]),
        ("trl", ["--missing-reward", "leave_out"]),
    ],
)
def test_options_that_mean_nothing_are_refused(ran, what, option):
    out, journal = ran.place / "x", ran.journal
    arguments = ("export", "r", "--what", what, "--out", out, "--journal", journal, *option)
    done = ran.holdfast(*arguments)
    assert done.code == Exit.USAGE
    assert "goes with --what" in done.line


PARTLY = """
import holdfast


async def solve(t: holdfast.Rollout) -> float | None:
    t.add(*t.task.messages)
    await t.generate(max_tokens=8)
    return None if t.task.id == "none" or t.key.sample == 1 else 1.0
"""


def test_what_nobody_scored(module_engine, tmp_path):
    shell = CommandLine(tmp_path, module_engine)
    shell.write("partly.py", PARTLY)
    shell.tasks("a", "b", "none")
    shell.finished_run("--samples", 3, rollout="partly.py")
    leave_out = ("--missing-reward", "leave-out")
    rows = lines(shell.export("slime", "--fixed-groups", *leave_out))
    assert [row["group_index"] for row in rows] == [0, 0, 0, 1, 1, 1], "n of each"
    assert [row["status"] == "aborted" for row in rows] == [False, True, False] * 2
    assert [len(lines(shell.export("slime", *leave_out))), len(lines(shell.export("tinker")))] == [
        4,
        4,
    ]
    refused = shell.holdfast("export", "r", "--what", "verl", "--out", "-")
    assert "--missing-reward leave-out" in refused.line
    shell.tasks("none")
    shell.finished_run("--samples", 3, rollout="partly.py", run="bare")
    for arguments in (["tinker"], ["nemo", *leave_out], ["slime", "--fixed-groups", *leave_out]):
        done = shell.holdfast("export", "bare", "--what", *arguments, "--out", "-")
        assert done.code == Exit.EMPTY
        assert "of 3 valid outcomes none in a whole, kept group has a reward" in done.line
