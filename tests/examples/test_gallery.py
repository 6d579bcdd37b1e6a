"""The gallery: each example is short, gives its reward, and goes on after a SIGKILL.

An example whose library is not installed is skipped; `make gallery` installs them all.
"""

import ast
import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.testing import FakeEngine
from support.paths import EXAMPLES

MAX_LINES = 60


def call(tool: str, **arguments: object) -> str:
    return f"@0 <tool_call>{json.dumps({'name': tool, 'arguments': arguments})}</tool_call>"


class Example(NamedTuple):
    tasks: str
    replies: list[str]
    """What the model says, `@N` in its N-th turn."""
    rewards: tuple[float, float] = (1.0, 1.0)
    """The least and the most that its first task gets for that."""
    library: str = ""


SELECT = "SELECT price FROM items WHERE name = 'anchor'"
PATH = ["down", "down", "right", "right", "down", "right"]
GALLERY = {
    "calculator": Example(
        "arithmetic.jsonl", [call("calculator", expression="26 + 32 + 53"), "@1 It is 111."]
    ),
    "sql_agent": Example("sql_agent.jsonl", [call("query", sql=SELECT), "@1 It costs 95."]),
    "dialogue": Example("shop.jsonl", ["A rope costs 12."]),
    "judged": Example("judged.jsonl", ["A bowline."], (0.75, 0.75)),
    "workspace_coding": Example(
        "coding.jsonl",
        [call("shell", command="printf 'def add(a, b):\\n return a + b\\n' > solution.py"), "@1 ."],
    ),
    "frozen_lake": Example(
        "frozen_lake.jsonl", [f"@{at} {to}" for at, to in enumerate(PATH)], library="gymnasium"
    ),
    "puzzles": Example("puzzles.py", ["PUZZLE"], library="reasoning_gym"),
    "guess_number": Example(
        "guess_number.jsonl",
        [f"@{turn} [{2 * turn + 2}]" for turn in range(10)],
        (0.01, 1.0),
        library="textarena",
    ),
    "verifiers_environment": Example("arithmetic.jsonl", ["It is 111"], library="verifiers"),
    "inspect_task": Example("arithmetic.jsonl", ["It is 111"], library="inspect_ai"),
}
NEEDS_CONTAINERS = "container_coding"
"""It wants a container engine and an image with Python, which the gallery does not have."""
JUDGED = '{"right": {"reason": "yes", "score": 10}, "short": {"reason": "long", "score": 5}}'


def holdfast(*arguments: str, folder: Path, crash: str = "", judge: str = "") -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", *arguments],
        cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HOLDFAST_CRASH": crash, "JUDGE": judge},
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def example_files() -> list[Path]:
    return sorted(EXAMPLES.glob("*.py"))


def test_the_gallery_is_what_is_in_the_folder() -> None:
    assert {file.stem for file in example_files()} == {*GALLERY, NEEDS_CONTAINERS}


@pytest.mark.parametrize("file", example_files(), ids=lambda file: file.stem)
def test_an_example_is_short_and_says_first_what_it_shows(file: Path) -> None:
    assert len(file.read_text().splitlines()) < MAX_LINES
    first = (ast.get_docstring(ast.parse(file.read_text())) or "").splitlines()[0]
    assert ":" in first
    assert first.endswith(".")


@pytest.mark.parametrize("name", GALLERY)
def test_an_example_gives_its_reward_and_goes_on_after_a_kill(name: str, tmp_path: Path) -> None:
    example = GALLERY[name]
    if example.library and importlib.util.find_spec(example.library) is None:
        pytest.skip(f"{example.library} is not installed: make gallery")
    replies = [puzzle_answer() if reply == "PUZZLE" else reply for reply in example.replies]
    arguments = [
        "run", str(EXAMPLES / f"{name}.py"), "--tasks", str(EXAMPLES / example.tasks),
        "--limit", "1", "--samples", "4", "--seed", "1", "--run", "r",
    ]  # fmt: skip
    with FakeEngine(replies=replies) as engine, FakeEngine(replies=[JUDGED]) as judge:
        arguments += ["--policy", engine.url]
        code, output = holdfast(
            *arguments, "--journal", "calm.db", folder=tmp_path, judge=judge.url
        )
        assert code == 0, output
        killed = ("--journal", "killed.db")
        code, output = holdfast(
            *arguments, *killed, folder=tmp_path, crash="after:9", judge=judge.url
        )
        assert code == -signal.SIGKILL, output
        code, output = holdfast(*arguments, *killed, folder=tmp_path, judge=judge.url)
        assert code == 0, output
    calm, resumed = (samples(journal, tmp_path) for journal in ("calm.db", "killed.db"))
    least, most = example.rewards
    assert {row["sample"] for row in calm} == {0, 1, 2, 3}
    assert all(least <= row["reward"] <= most for row in calm), [row["reward"] for row in calm]
    assert resumed == calm


def puzzle_answer() -> str:
    sys.path.insert(0, str(EXAMPLES))
    puzzles = importlib.import_module("puzzles")
    return str(next(puzzles.tasks())["ground_truth"]["answer"])


def samples(journal: str, folder: Path) -> list[dict[str, object]]:
    out = folder / f"{journal}.jsonl"
    arguments = ("export", "r", "--what", "samples", "--out", str(out), "--journal", journal)
    code, output = holdfast(*arguments, folder=folder)
    assert code == 0, output
    return [json.loads(line) for line in out.read_text().splitlines()]
