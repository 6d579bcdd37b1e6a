"""Finished rows are in the journal, not in memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.testing import FakeEngine

PROGRAM = """
import resource
import sys

from holdfast import Message, Rollout
from holdfast.evaluation import evaluation_test

ROWS, URL = int(sys.argv[1]), sys.argv[2]


async def answer(t: Rollout):
    t.add(*t.task.messages, Message("user", t.task.id * 1000))
    await t.generate(max_tokens=4)


@evaluation_test(
    dataset=lambda: ({"id": f"{n:04}", "prompt": "hi"} for n in range(ROWS)),
    rollout_processor=answer,
    max_concurrent_rollouts=32,
)
def judge(row):
    return len(row.messages) / 3


outcome = judge.evaluate(policy=URL, journal="journal.db")
assert (outcome.verdict.scored, outcome.score) == (ROWS, 1.0)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def most_memory(folder: Path, rows: int, url: str) -> int:
    """The most that the process ever had, in KiB."""
    folder.mkdir()
    (folder / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "program.py", str(rows), url],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.exhaustive
def test_five_thousand_rows_need_little_more_memory_than_a_thousand(
    tmp_path: Path, engine: FakeEngine
) -> None:
    few = most_memory(tmp_path / "few", 1_000, engine.url)
    many = most_memory(tmp_path / "many", 5_000, engine.url)
    # What a row leaves behind is some 4 KB of text and 16 KB of token ids; were it kept, 4,000
    # more rows would take 80 MB at the very least. The data set itself is kept.
    assert many - few < 40_000, f"{few} KiB for 1,000 rows, {many} KiB for 5,000"
