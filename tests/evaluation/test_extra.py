"""Without the extra `evaluation`, its names say how to get it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT = """
import sys
sys.modules["pydantic"] = None
import holdfast.evaluation
from holdfast.records.errors import UsageError
try:
    from holdfast.evaluation import {name}
except UsageError as error:
    print(error)
"""


def said(name: str) -> str:
    script = WITHOUT.format(name=name)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("name", ["evaluation_test", "EvaluationRow", "EvaluateResult"])
def test_a_name_that_needs_the_extra_names_it(name: str) -> None:
    assert said(name) == (
        f"holdfast.evaluation.{name} needs pydantic; install it with: "
        "pip install '.[evaluation]' (in the clone)\n"
    )


def test_a_file_of_rows_that_is_compared_without_it_names_it_too(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"messages": []}\n')
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['pydantic'] = None\n")
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "compare", rows, rows],
        capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith(f"holdfast: {rows} needs pydantic; install it with: ")


def test_a_name_that_needs_no_extra_is_there_without_it() -> None:
    assert said("Results") == ""
