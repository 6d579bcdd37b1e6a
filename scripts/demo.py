"""`make demo`: a run that is killed again and again, and loses nothing.

Starts the embedded engine and its small model, and lets groups of agents with a calculator work
twice: once undisturbed; once while this script kills the driver, and then the engine as well, in
the middle of their replies. Then it compares the two runs byte for byte, and counts what the
engine was asked.
"""

import asyncio
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from rich.console import Console
from rich.table import Table

import holdfast
from holdfast.embedded.child_process import EmbeddedEngine
from holdfast.records.history import History

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
PLACE = ROOT / ".demo"
LOG = PLACE / "engine.log"
TASKS = EXAMPLES / "arithmetic.jsonl"
BIN = os.path.relpath(Path(sys.executable).parent)
SAMPLES, DRIVER_KILLS, EVERY = 16, 3, 8
console = Console(highlight=False)


def main() -> None:
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir()
    engine = EmbeddedEngine(log=LOG, options=("--log-requests",))
    with console.status("starting the embedded engine (a model of 1.1 M parameters, on the CPU)"):
        engine.start()
    try:
        console.print(f"the embedded engine serves [bold]{engine.model}[/] at {engine.url}\n")
        console.rule("[bold]an undisturbed run")
        _run(engine, "undisturbed.db")
        LOG.write_text("")
        console.rule("[bold]the same run, killed on the way")
        story = Story(engine)
        _disturb(engine, story)
        _run(engine, "killed.db")
        story.look()
        _prove(story)
    finally:
        engine.stop()


def _command(engine: EmbeddedEngine, journal: str) -> list[str]:
    return [
        sys.executable, "-m", "holdfast", "run", str(EXAMPLES / "calculator.py"),
        "--tasks", str(TASKS), "--samples", str(SAMPLES), "--seed", "1", "--policy", engine.url,
        "--journal", str(PLACE / journal), "--run", "demo", "--concurrency", "16",
        "--partial-tokens", str(EVERY),
    ]  # fmt: skip


def _run(engine: EmbeddedEngine, journal: str) -> None:
    subprocess.run(_command(engine, journal), check=True)


class Story:
    """What was durable at each kill, and whether the engine was ever asked for it again."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self.kills = 0
        self.turns: dict[str, bytes] = {}
        """The ids of every turn that was durable at some kill."""
        self.drafted = 0
        """Tokens of unfinished replies that were durable at the last kill."""
        self.again = 0
        self.sampled = 0
        self._engine = engine
        self._asked = 0
        self._metered = _tokens(engine)

    def look(self) -> None:
        """At a kill, and at the end."""
        asked = re.findall(r"^request '(.*)'$", LOG.read_text(), re.MULTILINE)
        self.again += sum(request in self.turns for request in asked[self._asked :])
        self._asked = len(asked)
        turns, self.drafted = asyncio.run(_durable())
        lost = [path for path, ids in self.turns.items() if turns.get(path) != ids]
        assert not lost, f"durable turns are gone or changed: {lost}"
        self.turns = turns

    def meter(self) -> None:
        """What the engine sampled so far: it forgets that when it dies."""
        self.sampled += _tokens(self._engine) - self._metered
        self._metered = 0


def _disturb(engine: EmbeddedEngine, story: Story) -> None:
    chance = random.Random(3)
    for _ in range(DRIVER_KILLS):
        driver = subprocess.Popen([*_command(engine, "killed.db"), "--quiet"])
        _wait(driver, engine, chance.randrange(1500, 2500))
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        _tell(story, "the driver")
    driver = subprocess.Popen([*_command(engine, "killed.db"), "--quiet"])
    _wait(driver, engine, 1500)
    story.meter()
    engine.kill()
    _tell(story, "the engine")
    engine.restart()
    _wait(driver, engine, 200)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    _tell(story, "the driver")
    console.print("[bold]and the same command once more:[/]")


def _wait(driver: "subprocess.Popen[bytes]", engine: EmbeddedEngine, tokens: int) -> None:
    """Until the engine has sampled some more: most of them belong to replies under way."""
    goal = _tokens(engine) + tokens
    while _tokens(engine) < goal:
        assert driver.poll() is None, "the run ended before it was killed"
        time.sleep(0.02)


def _tell(story: Story, who: str) -> None:
    story.kills += 1
    story.look()
    console.print(
        f"[red]SIGKILL {story.kills}[/] of {who}: {len(story.turns)} turns are durable, and "
        f"{story.drafted} tokens of replies that were not finished",
        soft_wrap=True,
    )


def _tokens(engine: EmbeddedEngine) -> int:
    with urllib.request.urlopen(f"{engine.url}/metrics") as answer:
        said = answer.read()
    found = re.search(rb"^holdfast_generation_tokens_total\S* (\S+)$", said, re.MULTILINE)
    assert found is not None, "the engine counts its tokens"
    return int(float(found[1]))


async def _durable() -> tuple[dict[str, bytes], int]:
    """The ids of all turns that the journal holds, and the tokens of unfinished ones."""
    journal = holdfast.open_journal(PLACE / "killed.db", read_only=True)
    try:
        run = await journal.find_run("demo")
        assert run is not None, "it has been running"
        turns: dict[str, bytes] = {}
        drafted = 0
        async for row, records in journal.histories(run):
            history = History(records)
            drafted += sum(len(draft.ids) // 4 for draft in history.drafts.values())
            turns |= {f"{row.key}/{step.path}": step.ids for step in history.generations}
        return turns, drafted
    finally:
        await journal.close()


def _export(journal: str) -> bytes:
    out = PLACE / f"{journal}.jsonl"
    subprocess.run(
        [sys.executable, "-m", "holdfast", "export", "demo", "--what", "samples", "--out", str(out),
         "--journal", str(PLACE / journal)],
        stdout=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    return out.read_bytes()


def _prove(story: Story) -> None:
    story.meter()
    one, two = _export("undisturbed.db"), _export("killed.db")
    kept = sum(sum(json.loads(line)["loss_mask"]) for line in two.splitlines())
    console.rule("[bold]the proof")
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("training data of the two runs", _verdict(one == two, "equal, byte for byte"))
    table.add_row("durable turns lost or changed by a kill", _verdict(True, "none"))
    table.add_row("durable turns generated again", _verdict(not story.again, str(story.again)))
    table.add_row(
        "tokens sampled, and kept",
        f"{story.sampled:,} and {kept:,}: {story.sampled - kept} were in flight at {story.kills} "
        "kills",
    )
    table.add_row(
        "failures survived", f"{story.kills - 1} dead drivers, 1 dead engine and its cut streams"
    )
    console.print(table)
    subprocess.run(
        [sys.executable, "-m", "holdfast", "journal", "check", str(PLACE / "killed.db")], check=True
    )
    journal = os.path.relpath(PLACE / "killed.db")
    console.print(
        f"\n[bold]try next[/]\n"
        f"  {BIN}/holdfast show demo --journal {journal}\n"
        f"  {BIN}/holdfast export demo --what rows --out .demo/rows.jsonl --journal {journal}\n"
        f"  {BIN}/holdfast run examples/calculator.py --tasks examples/arithmetic.jsonl "
        "--samples 4 --run mine",
        soft_wrap=True,
    )
    if one != two or story.again:
        sys.exit(1)


def _verdict(holds: bool, said: str) -> str:
    return f"[green]{said}[/]" if holds else f"[red]NO: {said}[/]"


if __name__ == "__main__":
    main()
