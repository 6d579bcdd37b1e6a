"""The coding example: short, right, and run with the embedded engine."""

import json
import subprocess
import sys

import holdfast
from holdfast.cli.setup.user_code import load_module
from holdfast.embedded.child_process import EmbeddedEngine
from holdfast.journal.sqlite.journal import MemoryJournal
from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.records.history import History
from support.paths import EXAMPLES
from support.rollout.stage import Oracle, text_of

EXAMPLE = EXAMPLES / "workspace_coding.py"
TASKS = EXAMPLE.with_name("coding.jsonl")
ROWS = [json.loads(line) for line in TASKS.read_text().splitlines()]
COUNT = "#!/bin/sh\ntr 'A-Z ' 'a-z\\n' | grep . | sort -u | wc -l\n"
REPAIRED = """
def median(numbers):
    ordered, half = sorted(numbers), len(numbers) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
"""
SOLUTIONS = {
    "Write `add": ("shell", {"command": "printf 'def add(a, b):\\n    return 5\\n' > solution.py"}),
    "median.py has": ("write_file", {"path": "median.py", "content": REPAIRED}),
    "Write an executable": (
        "shell",
        {"command": f"cat > count.sh <<'E'\n{COUNT}E\nchmod +x count.sh; ./count.sh < text.txt"},
    ),
}


def programmer(request) -> str:
    """Solves the tasks with one call each; the first one only in part."""
    prompt = text_of(request.prompt)
    if "[exit code 0]" in prompt or "wrote" in prompt:
        return "It is done."
    ((name, arguments),) = (call for arguments, call in SOLUTIONS.items() if arguments in prompt)
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_it_is_short():
    assert len(EXAMPLE.read_text().splitlines()) <= 80


async def test_the_reward_is_the_share_of_the_hidden_tests_that_pass():
    journal = MemoryJournal()
    await holdfast.run(
        load_module(EXAMPLE).agent,
        tasks=ROWS,
        policy=Oracle(programmer),
        journal=journal,
        name="code",
        renderer=ByteRenderer(),
        seed=1,
    )
    run = await journal.find_run("code")
    fields = {row.key.task: History(log) async for row, log in journal.histories(run)}
    assert {name: history.reward for name, history in fields.items()} == {
        "add": 0.5,
        "median": 1.0,
        "words": 1.0,
    }
    assert {history.status.name for history in fields.values()} == {"COMPLETED"}


def test_it_runs_with_the_embedded_engine(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with EmbeddedEngine() as engine:
        command = [
            *(sys.executable, "-m", "holdfast", "run", str(EXAMPLE), "--tasks", str(TASKS)),
            *("--run", "code", "--journal", str(tmp_path / "j.db"), "--max-tokens", "64"),
            *("--policy", engine.url, "--seed", "1", "--quiet"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
