"""The examples that need nothing beside the embedded engine, as a reader would run them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.paths import EXAMPLES

SMALL = {
    "calculator": "arithmetic",
    "dialogue": "shop",
}


def holdfast(*args: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", *args],
        cwd=folder, capture_output=True, text=True, timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def exported(what: str, folder: Path) -> list[dict[str, object]]:
    holdfast("export", "r", "--what", what, "--out", f"{what}.jsonl", folder=folder)
    return [json.loads(line) for line in (folder / f"{what}.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", SMALL)
def test_it_runs_with_the_embedded_engine_and_gives_training_data(name, tmp_path):
    tasks = tmp_path / "tasks.jsonl"
    rows = (EXAMPLES / f"{SMALL[name]}.jsonl").read_text().splitlines(keepends=True)
    tasks.write_text("".join(rows[:3]))
    holdfast(
        "run", str(EXAMPLES / f"{name}.py"), "--tasks", str(tasks), "--run", "r", "--samples", "2",
        "--seed", "7", folder=tmp_path,
    )  # fmt: skip
    samples = exported("samples", tmp_path)
    assert len(samples) == 6
    assert all(sum(sample["loss_mask"]) > 0 for sample in samples)
    assert all(sample["reward"] is not None for sample in samples)


def test_the_tasks_of_a_first_training_are_right_and_no_held_out_one_is_trained():
    rows = {
        name: [json.loads(line) for line in (EXAMPLES / f"{name}.jsonl").read_text().splitlines()]
        for name in ("train", "held_out")
    }
    assert [len(rows["train"]), len(rows["held_out"])] == [400, 200]
    tasks = [*rows["train"], *rows["held_out"]]
    assert len({row["id"] for row in tasks}) == len({row["prompt"] for row in tasks}) == 600
    for row in tasks:
        assert row["ground_truth"] == str(sum(map(int, re.findall(r"\d+", row["prompt"]))))


def test_only_the_assistant_of_the_dialogue_is_trained(tmp_path):
    holdfast(
        "run", str(EXAMPLES / "dialogue.py"), "--tasks", str(EXAMPLES / "shop.jsonl"), "--run", "r",
        "--seed", "7", folder=tmp_path,
    )  # fmt: skip
    for row in exported("trajectories", tmp_path):
        assert {turn["step"].partition(".")[2] != "" for turn in row["turns"]} == {True, False}
    assert len(exported("samples", tmp_path)) == 3
