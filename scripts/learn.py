"""`make learn`: a training that is killed again and again, and learns the same.

Trains the small model on sums twice, each time by `holdfast train`: once undisturbed; once while
this script kills it, or the engine that it started, at random moments, and gives the same command
again. Then it compares the two bit for bit, and draws both curves into one picture.
"""

import argparse
import asyncio
import os
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

import holdfast
from holdfast.records.history import History
from holdfast.training.run.curve import draw
from holdfast.training.run.metrics import FILE, read

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
PLACE = ROOT / ".learn"
STEPS, GROUPS, SAMPLES = 12, 8, 8
CLOCKS = ("seconds", "trainer_seconds")
REQUESTS, PAUSE = (60, 360), 3.0
"""Before each kill: so many requests to the engine, and up to so many seconds, at random."""
console = Console(highlight=False)


class Training:
    """`holdfast train` with a folder and a journal of its own."""

    def __init__(self, name: str):
        self.out = PLACE / name
        self.journal = PLACE / f"{name}.db"
        self.command = [
            *(sys.executable, "-m", "holdfast", "train", str(EXAMPLES / "calculator.py")),
            *(
                "--tasks",
                str(EXAMPLES / "train.jsonl"),
                "--eval-tasks",
                str(PLACE / "held_out.jsonl"),
            ),
            *("--run", "learn", "--out", str(self.out), "--journal", str(self.journal)),
            *("--steps", str(STEPS), "--groups", str(GROUPS), "--samples", str(SAMPLES)),
            *("--learning-rate", "6e-4", "--eval-every", "4", "--log-requests"),
        ]

    def start(self) -> "subprocess.Popen[bytes]":
        """With one thread: the bits of a sum depend on how many there are."""
        return subprocess.Popen(self.command, env={**os.environ, "OMP_NUM_THREADS": "1"})

    def finish(self) -> None:
        if code := self.start().wait():
            sys.exit(f"holdfast train ended with exit code {code}")

    def requests(self) -> list[str]:
        """What its engines were asked for, so far."""
        log = self.out / "engine.log"
        text = log.read_text() if log.exists() else ""
        return re.findall(r"^request '(.*)'$", text, re.MULTILINE)

    def metrics(self) -> list[dict[str, Any]]:
        """The numbers of each step, without clocks."""
        lines = read(self.out / FILE)
        return [{key: line[key] for key in line if key not in CLOCKS} for line in lines]

    def curve(self, number: str) -> list[tuple[float, float]]:
        return [(line["step"], line[number]) for line in self.metrics() if number in line]

    def weights(self) -> list[bytes]:
        """The model and the optimizer's state, as they are on disk."""
        checkpoint = self.out / "checkpoints" / f"step-{STEPS:08d}"
        model = self.out / "weights" / f"step-{STEPS}" / "model.safetensors"
        return [model.read_bytes(), (checkpoint / "optimizer.safetensors").read_bytes()]

    def ledger(self) -> list[tuple[str, str, int | None]]:
        """What became of each group, and the step that trained it."""
        return asyncio.run(_ledger(self.journal))

    def turns(self) -> dict[str, bytes]:
        """The ids of every turn that is durable."""
        return asyncio.run(_turns(self.journal)) if self.journal.exists() else {}


async def _ledger(path: Path) -> list[tuple[str, str, int | None]]:
    journal = holdfast.open_journal(path, read_only=True)
    try:
        run = await journal.find_run("learn")
        assert run is not None, "it was trained"
        return sorted((g.task, str(g.end), g.step) for g in await journal.ledger(run, "trainer"))
    finally:
        await journal.close()


async def _turns(path: Path) -> dict[str, bytes]:
    journal = holdfast.open_journal(path, read_only=True)
    found: dict[str, bytes] = {}
    try:
        for known in await journal.runs():
            run = await journal.find_run(known.name)
            assert run is not None, "it is listed"
            async for row, records in journal.histories(run):
                steps = History(records).generations
                found |= {f"{row.key}/{step.path}": step.ids for step in steps}
        return found
    finally:
        await journal.close()


class Story:
    """What was durable at each kill, and whether an engine was ever asked for it again."""

    def __init__(self, training: Training):
        self.kills: list[tuple[str, int]] = []
        """Who was killed, and how many steps there were."""
        self.turns: dict[str, bytes] = {}
        self.lost = 0
        self.again = 0
        self._training = training
        self._asked = 0

    def look(self) -> None:
        """At a kill, and at the end. Turns first: one that is durable was asked for before."""
        turns, asked = self._training.turns(), self._training.requests()
        self.again += sum(request in self.turns for request in asked[self._asked :])
        self._asked = len(asked)
        self.lost += sum(turns.get(path) != ids for path, ids in self.turns.items())
        self.turns = turns

    def tell(self, who: str) -> None:
        self.look()
        done = max((line["step"] for line in read(self._training.out / FILE)), default=0)
        self.kills.append((who, done))
        console.print(
            f"[red]SIGKILL {len(self.kills)}[/] of {who} after step {done}: "
            f"{len(self.turns)} turns are durable",
            soft_wrap=True,
        )


def main() -> None:
    arguments = argparse.ArgumentParser(description="A training that is killed learns the same.")
    arguments.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the kills")
    arguments.add_argument("--kills", type=int, default=6)
    arguments.add_argument("--picture", type=Path, default=PLACE / "curve.svg")
    args = arguments.parse_args()
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir()
    held_out = (EXAMPLES / "held_out.jsonl").read_text().splitlines(keepends=True)
    (PLACE / "held_out.jsonl").write_text("".join(held_out[:64]))
    console.rule("[bold]an undisturbed training")
    undisturbed, killed = Training("undisturbed"), Training("killed")
    undisturbed.finish()
    console.rule("[bold]the same training, killed on the way")
    console.print(f"the seed of the kills is {args.seed} (make learn SEED={args.seed})")
    story = _disturb(killed, random.Random(args.seed), args.kills)
    _draw(undisturbed, killed, [step for _, step in story.kills], args.picture)
    holds = _prove(undisturbed, killed, story)
    console.print(f"the picture of both curves is {os.path.relpath(args.picture)}")
    sys.exit(0 if holds else 1)


def _disturb(training: Training, chance: random.Random, kills: int) -> Story:
    story, process = Story(training), training.start()
    while len(story.kills) < kills and _wait(training, process, chance):
        engines = _children(process.pid)
        if engines and chance.random() < 1 / 3:
            os.kill(engines[0], 9)
            story.tell("the engine")
            continue
        process.kill()
        process.wait()
        story.tell("the trainer")
        process = training.start()
    if code := process.wait():
        sys.exit(f"holdfast train ended with exit code {code}")
    story.look()
    return story


def _wait(training: Training, process: "subprocess.Popen[bytes]", chance: random.Random) -> bool:
    """Until a random moment; False when the training ended before."""
    goal = len(training.requests()) + chance.randrange(*REQUESTS)
    while len(training.requests()) < goal and process.poll() is None:
        time.sleep(0.05)
    time.sleep(chance.uniform(0, PAUSE))
    return process.poll() is None


def _children(pid: int) -> list[int]:
    """Its engine, if it has one just now."""
    said = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, check=True)
    pairs = [line.split() for line in said.stdout.decode().splitlines()]
    return [int(child) for child, parent in pairs if int(parent) == pid]


def _draw(undisturbed: Training, killed: Training, kills: list[int], path: Path) -> None:
    """Two lines of each: where they are one, the dashes of the second lie on the first."""
    said = f"killed {len(kills)} times"
    # A kill after step 3 fell into step 4; of several, each has a place of its own.
    marks = [d + (kills[:n].count(d) + 1) / (kills.count(d) + 1) for n, d in enumerate(kills)]
    curves = {
        "undisturbed": undisturbed.curve("reward"),
        said: killed.curve("reward"),
        "undisturbed, on held-out tasks": undisturbed.curve("eval_reward"),
        f"{said}, on held-out tasks": killed.curve("eval_reward"),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(draw(curves, title="mean reward, and the kills", axis="step", marks=marks))


class Finding(NamedTuple):
    what: str
    holds: bool
    said: str


def _prove(undisturbed: Training, killed: Training, story: Story) -> bool:
    one, two = undisturbed.metrics(), killed.metrics()
    ledger = killed.ledger()
    steps = sorted(step for _, end, step in ledger if end == "trained" and step is not None)
    once = steps == sorted(step for step in range(1, STEPS + 1) for _ in range(GROUPS))
    first, *_, last = [reward for _, reward in killed.curve("eval_reward")]
    findings = [
        Finding("loss and all other numbers of each step", one == two, "equal, bit for bit"),
        Finding(
            "final weights and optimizer state",
            undisturbed.weights() == killed.weights(),
            "equal, bit for bit",
        ),
        Finding(
            "ledger: each trajectory was trained once, in the same step",
            once and ledger == undisturbed.ledger(),
            f"{len(ledger)} groups, {len(ledger) * SAMPLES} trajectories",
        ),
        Finding("durable turns lost or changed by a kill", not story.lost, str(story.lost)),
        Finding("durable turns requested again", _is_clean(killed, story), str(story.again)),
        Finding("reward on held-out tasks", last > first, f"{first:.2f} → {last:.2f}"),
    ]
    _print(findings, story)
    return all(finding.holds for finding in findings)


def _is_clean(killed: Training, story: Story) -> bool:
    """Every turn was requested, so the count is of all requests; none that was durable, again."""
    return not story.again and story.turns.keys() <= set(killed.requests())


def _print(findings: list[Finding], story: Story) -> None:
    console.rule("[bold]the proof")
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for what, holds, said in findings:
        table.add_row(what, f"[green]{said}[/]" if holds else f"[red]NO: {said}[/]")
    engines = sum(who == "the engine" for who, _ in story.kills)
    table.add_row("kills survived", f"{len(story.kills) - engines} trainers, {engines} engines")
    console.print(table)


if __name__ == "__main__":
    main()
