"""The documented questions in SQL are answered by DuckDB."""

import importlib.util
import re
import subprocess
import sys

import pytest

from support.paths import DOCS
from support.view import rich_journal

HAS_DUCKDB = importlib.util.find_spec("duckdb") is not None


@pytest.mark.skipif(not HAS_DUCKDB, reason="duckdb is not installed")
def test_the_documented_questions_have_answers(tmp_path):
    rich_journal(tmp_path / "holdfast.db")
    words = ["export", "rich", "--what", "trajectories", "--out", "first.parquet"]
    subprocess.run([sys.executable, "-m", "holdfast", *words], cwd=tmp_path, check=True)
    page = (DOCS / "training-data.md").read_text()
    code = re.search(r"```python\n(# questions.py\n.*?)```", page, re.DOTALL)
    assert code is not None
    done = subprocess.run(
        [sys.executable, "-c", code[1]], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    by_task, by_turns, by_role = done.stdout.split("\n\n")[:3]
    assert "kelp" in by_task
    assert "1000" in by_turns
    assert "assistant" in by_role
