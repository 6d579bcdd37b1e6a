"""`CodeTests`: programs are run in a workspace's sandbox, against tests that they have not seen."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.records.errors import UsageError
from holdfast.scorers import CodeTests

ASSERTS = ["assert add(1, 2) == 3", "assert add(0, 0) == 0"]
RIGHT = "Here it is:\n```python\ndef add(a, b):\n    return a + b\n```\nDone."
HALF = "```python\ndef add(a, b):\n    return 0\n```"


def score(reply: str, ground_truth: object, **settings: object):
    messages = [SimpleNamespace(role="assistant", content=reply)]
    row = SimpleNamespace(messages=messages, ground_truth=ground_truth)
    return asyncio.run(CodeTests(**settings)(row))


def test_a_program_passes_statements_a_test_file_or_files() -> None:
    file = "from solution import add\n\n\ndef test_add():\n    assert add(2, 2) == 4\n"
    for tests in (ASSERTS, file, {"test_mine.py": file, "data.txt": "5"}):
        assert score(RIGHT, tests).reward == 1.0


def test_a_program_that_fails_a_test_gets_0_or_its_share_and_the_output_is_kept() -> None:
    failed = score(HALF, ASSERTS)
    assert (failed.reward, failed.metrics["passed"], failed.metrics["failed"]) == (0.0, 1.0, 1.0)
    assert "assert add(1, 2) == 3" in failed.reasons["output"]
    assert score(HALF, ASSERTS, partial=True).reward == 0.5


def test_the_output_is_the_same_each_time() -> None:
    assert score(RIGHT, ASSERTS).reasons == score(RIGHT, ASSERTS).reasons


@pytest.mark.parametrize(
    "reply",
    [
        "import os\nos._exit(0)",
        "no program",
        "",
        "import sys\nsys.exit(0)",
        "while True:\n    pass",
    ],
)
def test_no_trick_and_no_accident_of_a_program_is_a_reward(reply: str) -> None:
    assert score(reply, ASSERTS, timeout=20 if "while" not in reply else 5).reward == 0.0


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    score(RIGHT, ASSERTS)
    assert not list(tmp_path.rglob("solution.py"))


def test_a_missing_pytest_is_said_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install pytest"):
        asyncio.run(CodeTests().check_before_run())
    asyncio.run(CodeTests(command="python check.py").check_before_run())
