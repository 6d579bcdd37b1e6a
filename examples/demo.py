"""`make demo`: a run that is killed again and again, and loses nothing.

Runs groups of tool-using trajectories twice: once undisturbed, once with SIGKILLs on the way. Then
it compares the two, byte for byte, and counts what the engine was asked.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console

from holdfast.testing import FakeEngine, Fault, FaultKind

HERE = Path(__file__).parent
PLACE = HERE.parent / ".demo"
TASKS, SAMPLES, KILLS = 24, 4, 3
REPLIES = (
    '<tool_call>{"name": "add", "arguments": {"a": {n}, "b": {n}}}</tool_call>',
    '<tool_call>{"name": "add", "arguments": {"a": "a few", "b": {n}}}</tool_call>',
    "Let me think. The answer is {n}.",
)
FAULTS = (
    Fault(FaultKind.UNAVAILABLE, rate=0.05),
    Fault(FaultKind.RESET_AFTER, rate=0.05),
    Fault(FaultKind.NAN_LOGPROB, rate=0.03),
)
console = Console()


def main() -> None:
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir()
    tasks = PLACE / "tasks.jsonl"
    tasks.write_text(
        "".join(
            json.dumps({"id": f"sum-{i}", "prompt": f"What is {i} + {i + 1}?"}) + "\n"
            for i in range(TASKS)
        )
    )
    with FakeEngine(replies=REPLIES, delay=0.08, faults=FAULTS) as engine:
        console.rule("[bold]an undisturbed run")
        _run(engine, tasks, "undisturbed.db")
        undisturbed = engine.stats().completions
        engine.restart()
        console.rule("[bold]the same run, killed on the way")
        kills = _run_and_kill(engine, tasks)
        disturbed = engine.stats()
    _prove(undisturbed, disturbed.completions, kills)


def _command(engine: FakeEngine, tasks: Path, journal: str) -> list[str]:
    return [
        sys.executable, "-m", "holdfast", "run", str(HERE / "calculator.py"), "--tasks", str(tasks),
        "--samples", str(SAMPLES), "--policy", engine.url, "--model", engine.model, "--seed", "1",
        "--journal", str(PLACE / journal), "--run", "demo", "--concurrency", "16",
    ]  # fmt: skip


def _run(engine: FakeEngine, tasks: Path, journal: str) -> None:
    subprocess.run(_command(engine, tasks, journal), check=True)


def _run_and_kill(engine: FakeEngine, tasks: Path) -> int:
    kills = 0
    for kill in range(KILLS):
        process = subprocess.Popen([*_command(engine, tasks, "killed.db"), "--quiet"])
        goal = engine.stats().requests + random.randrange(30, 60)
        while process.poll() is None and engine.stats().requests < goal:
            time.sleep(0.01)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
            console.print(f"[red]SIGKILL {kill + 1}[/]: {_standing()}")
    console.print("and the same command once more:")
    _run(engine, tasks, "killed.db")
    return kills


def _standing() -> str:
    told = subprocess.run(
        [sys.executable, "-m", "holdfast", "runs", "--journal", str(PLACE / "killed.db")],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return told.strip().splitlines()[0]


def _export(journal: str) -> bytes:
    out = PLACE / f"{journal}.jsonl"
    subprocess.run(
        [sys.executable, "-m", "holdfast", "export", "demo", "--what", "samples", "--out", str(out),
         "--journal", str(PLACE / journal)],
        stdout=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    return out.read_bytes()


def _prove(undisturbed: int, disturbed: int, kills: int) -> None:
    console.rule("[bold]the proof")
    same = _export("undisturbed.db") == _export("killed.db")
    verdict = "[green]equal, byte for byte" if same else "[red]DIFFERENT"
    console.print(f"training data of the two runs: {verdict}[/]")
    console.print(
        f"completions sampled: {undisturbed} undisturbed, {disturbed} with {kills} kills: "
        f"{disturbed - undisturbed} were in flight when the process died, the rest was kept"
    )
    subprocess.run(
        [sys.executable, "-m", "holdfast", "journal", "check", str(PLACE / "killed.db")], check=True
    )
    journal = os.path.relpath(PLACE / "killed.db")
    console.print(
        f"\ntry next:\n  {VENV_BIN}/holdfast show demo sum-3/1 --journal {journal}\n"
        f"  {VENV_BIN}/holdfast export demo --what trajectories --out t.jsonl --journal {journal}"
    )
    if not same:
        sys.exit(1)


VENV_BIN = os.path.relpath(Path(sys.executable).parent)

if __name__ == "__main__":
    main()
