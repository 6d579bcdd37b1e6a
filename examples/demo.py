"""`make demo`: a run that is killed again and again, and loses nothing.

Runs groups of tool-using trajectories twice: once undisturbed, once with SIGKILLs on the way. Then
it compares the two, byte for byte, and counts what the engine was asked.
"""

import asyncio
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

import holdfast
from holdfast.records.history import History
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
        engine.restart()
        console.rule("[bold]the same run, killed on the way")
        _prove(_run_and_kill(engine, tasks))


def _command(engine: FakeEngine, tasks: Path, journal: str) -> list[str]:
    return [
        sys.executable, "-m", "holdfast", "run", str(HERE / "calculator.py"), "--tasks", str(tasks),
        "--samples", str(SAMPLES), "--policy", engine.url, "--model", engine.model, "--seed", "1",
        "--journal", str(PLACE / journal), "--run", "demo", "--concurrency", "16",
    ]  # fmt: skip


def _run(engine: FakeEngine, tasks: Path, journal: str) -> None:
    subprocess.run(_command(engine, tasks, journal), check=True)


class Tally:
    """What was durable at the kills, and whether any of it was asked for again."""

    def __init__(self) -> None:
        self.kills = 0
        self.kept = 0
        self.again = 0
        self._durable: set[str] = set()
        self._seen = 0

    def look(self, engine: FakeEngine, durable: set[str]) -> None:
        requests = [request for request, _ in engine.requests()]
        self.again += sum(request in self._durable for request in requests[self._seen :])
        self._durable, self._seen = durable, len(requests)


def _run_and_kill(engine: FakeEngine, tasks: Path) -> Tally:
    tally = Tally()
    for _ in range(KILLS):
        process = subprocess.Popen([*_command(engine, tasks, "killed.db"), "--quiet"])
        goal = engine.stats().requests + random.randrange(30, 60)
        while process.poll() is None and engine.stats().requests < goal:
            time.sleep(0.01)
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        durable = asyncio.run(_durable_turns())
        tally.look(engine, durable)
        tally.kills, tally.kept = tally.kills + 1, len(durable)
        console.print(
            f"[red]SIGKILL {tally.kills}[/]: {len(durable)} turns are durable. {_standing()}"
        )
    console.print("and the same command once more:")
    _run(engine, tasks, "killed.db")
    tally.look(engine, set())
    return tally


async def _durable_turns() -> set[str]:
    """The request ids of all turns that the journal holds."""
    journal = holdfast.open_journal(PLACE / "killed.db", read_only=True)
    try:
        run = await journal.find_run("demo")
        assert run is not None, "it has been running"
        return {
            f"{row.key}/{step.path}"
            async for row, records in journal.histories(run)
            for step in History(records).generations
        }
    finally:
        await journal.close()


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


def _prove(tally: Tally) -> None:
    console.rule("[bold]the proof")
    same = _export("undisturbed.db") == _export("killed.db")
    verdict = "[green]equal, byte for byte" if same else "[red]DIFFERENT"
    console.print(f"training data of the two runs: {verdict}[/]")
    console.print(
        f"{tally.kept} turns were durable at the last of {tally.kills} kills; "
        f"{tally.again} durable turns were ever generated again"
    )
    subprocess.run(
        [sys.executable, "-m", "holdfast", "journal", "check", str(PLACE / "killed.db")], check=True
    )
    journal = os.path.relpath(PLACE / "killed.db")
    console.print(
        f"\ntry next:\n  {VENV_BIN}/holdfast show demo sum-3/1 --journal {journal}\n"
        f"  {VENV_BIN}/holdfast export demo --what trajectories --out .demo/t.jsonl "
        f"--journal {journal}"
    )
    if not same or tally.again:
        sys.exit(1)


VENV_BIN = os.path.relpath(Path(sys.executable).parent)

if __name__ == "__main__":
    main()
