"""A small training in a process of its own, for tests that kill, freeze and resume it."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from holdfast.journal import open_journal
from holdfast.records.history import History
from holdfast.records.step import Generated
from holdfast.training.run.metrics import read
from holdfast.training.settings import TrainingRecord, training_of
from support.crash.freezing import freeze
from support.fork_server import TrainingPopen
from support.paths import EXAMPLES

STEPS, GROUPS, SAMPLES = 3, 2, 2
CLOCKS = ("seconds", "trainer_seconds")
RUN = "first"
ROLLOUT = Path(__file__).parent / "short_rollout.py"
HELD = Path(__file__).with_name("held_rollout.py")
WAITED = re.compile(r"(loading the model|step \d+ of|evaluating after).*, \d+ s")
"""What a training says of itself once a minute, where nobody looks at a terminal."""


class Training:
    """`holdfast train` in `folder`, with the tiny model on the embedded engine."""

    def __init__(self, folder: Path, *, journal: str = "", rollout: Path = ROLLOUT):
        """`journal`: a URL; else it is a file in the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.out = folder / "out"
        self.url = journal
        self._rollout = rollout
        self.journal = journal or folder / "journal.db"
        rows = (EXAMPLES / "arithmetic.jsonl").read_text().splitlines()
        (folder / "train.jsonl").write_text("\n".join(rows[:5]))
        (folder / "held_out.jsonl").write_text("\n".join(rows[5:7]))

    def command(self, *more: str) -> list[str]:
        return [
            *(sys.executable, "-m", "holdfast", "train", str(self._rollout)),
            *("--tasks", "train.jsonl", "--eval-tasks", "held_out.jsonl", "--eval-every", "2"),
            *("--run", RUN, "--out", str(self.out), "--journal", str(self.journal)),
            *("--steps", str(STEPS), "--groups", str(GROUPS), "--samples", str(SAMPLES)),
            *("--log-requests", *more),
        ]

    def start(self, *more: str, crash: str = "", **env: str) -> "subprocess.Popen[str]":
        """One thread: the bits of a sum depend on how many there are."""
        env = {**os.environ, "OMP_NUM_THREADS": "1", **env}
        if crash:
            env["HOLDFAST_CRASH"] = crash
        return TrainingPopen(
            self.command(*more),
            cwd=self.folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def train(self, *more: str, crash: str = "", **env: str) -> tuple[int, str, str]:
        """(exit code, stdout, stderr)"""
        process = self.start(*more, crash=crash, **env)
        out, err = process.communicate()
        return process.returncode, out, err

    def metrics(self) -> list[dict[str, Any]]:
        """Everything but clocks."""
        return [
            {name: value for name, value in line.items() if name not in CLOCKS}
            for line in read(self.out / "metrics.jsonl")
        ]

    def final(self) -> dict[str, bytes]:
        """The files that hold what was learned."""
        weights = self.out / "weights" / f"step-{STEPS}" / "model.safetensors"
        saved = self.out / "checkpoints" / f"step-{STEPS:08d}"
        return {
            "published": weights.read_bytes(),
            "weights": (saved / "weights.safetensors").read_bytes(),
            "optimizer": (saved / "optimizer.safetensors").read_bytes(),
        }

    def ledger(self) -> list[Any]:
        """What became of each group, and the versions."""
        return asyncio.run(self._ledger())

    async def _ledger(self) -> list[Any]:
        journal = open_journal(str(self.journal))
        try:
            run = await journal.find_run(RUN)
            assert run is not None
            groups = await journal.ledger(run, "trainer")
            versions = await journal.versions(run)
            return [
                [(g.task, str(g.end), g.step, g.reason) for g in groups],
                [(v.ordinal, v.name, v.step, v.digest) for v in versions],
            ]
        finally:
            await journal.close()

    def turns(self) -> dict[str, list[Generated]]:
        """Each durable turn, by trajectory, of the training and of its evaluations."""
        return asyncio.run(self._turns())

    async def _turns(self) -> dict[str, list[Generated]]:
        journal = open_journal(str(self.journal))
        try:
            result = {}
            for row in await journal.runs():
                run = await journal.find_run(row.name)
                assert run is not None
                async for trajectory, records in journal.histories(run):
                    turns = [record for record in records if isinstance(record, Generated)]
                    result[str(trajectory.key)] = turns
            return result
        finally:
            await journal.close()

    def sampled(self) -> dict[str, list[tuple[Any, ...]]]:
        """What is the same for every way in which the training went."""
        return {
            key: [(turn.path, turn.ids, turn.logprobs, turn.versions) for turn in turns]
            for key, turns in self.turns().items()
        }

    def check_versions(self) -> None:
        """Each trajectory was sampled with the version of the step that trained it: the one that
        the step before it had made."""
        groups, versions = self.ledger()
        made = {step: name for _, name, step, _ in versions}
        steps = {task: step for task, _, step, _ in groups}
        for key, names in self.trained().items():
            assert names == {made[steps[key.split("/")[1]] - 1]}, key

    def trained(self) -> dict[str, set[str]]:
        """The versions that sampled what there is of each trajectory of the training."""
        return asyncio.run(self._trained())

    async def _trained(self) -> dict[str, set[str]]:
        async with open_journal(str(self.journal)) as journal:
            run = await journal.find_run(RUN)
            assert run is not None
            return {
                str(row.key): {
                    span.version for turn in History(records).generations for span in turn.versions
                }
                async for row, records in journal.histories(run)
            }

    def recorded(self) -> TrainingRecord | None:
        """What the run says of its training."""
        return asyncio.run(self._recorded())

    async def _recorded(self) -> TrainingRecord | None:
        async with open_journal(str(self.journal)) as journal:
            run = await journal.find_run(RUN)
            assert run is not None
            return training_of(run)

    def report(self) -> str:
        """What `holdfast report` prints."""
        command = (sys.executable, "-m", "holdfast", "report", RUN, "--journal", str(self.journal))
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def hold_last_step(self, *more: str) -> "subprocess.Popen[str]":
        """Returns when one group of its last step is in the middle of its rollouts, which wait
        there while there is a file `hold`, and all else is settled. For the rollout `HELD`."""
        (self.folder / "hold").touch()
        process = self.start(*more)
        while not (Path(self.journal).exists() and asyncio.run(self._is_held())):
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        return process

    async def _is_held(self) -> bool:
        async with open_journal(str(self.journal)) as journal:
            if (run := await journal.find_run(RUN)) is None:
                return False
            rows = await journal.trajectories(run)
            held = [row for row in rows if row.key.task.endswith("@2")]
            turns = [History(await journal.history(row.id)).generations for row in held]
            settled = sum(row.settled for row in rows)
            return len(held) == SAMPLES == len(rows) - settled and all(turns)

    def requests(self) -> list[str]:
        """What its engines were asked for, so far; not the probes of their weights."""
        log = self.out / "engine.log"
        text = log.read_text() if log.exists() else ""
        return re.findall(r"^request '(.*/.*)'$", text, re.MULTILINE)


class Witness:
    """Looks at every kill what is durable: it stays, and no engine is asked for it again."""

    def __init__(self, training: Training):
        self._training = training
        self._turns: dict[str, list[Generated]] = {}
        self._asked = 0

    def look(self) -> None:
        """When the trainer is dead: what an engine gets now is of no turn that is durable."""
        known = {f"{key}/{turn.path}" for key, turns in self._turns.items() for turn in turns}
        texts = self._training.requests()
        assert not known.intersection(texts[self._asked :])
        before, self._turns = self._turns, self._training.turns()
        for key, turns in before.items():
            # With the seconds that each took: another sampling would have taken others.
            assert self._turns[key][: len(turns)] == turns
        self._asked = len(texts)

    def lose_folder(self) -> None:
        """The training's folder is gone, and the engine's log with it."""
        shutil.rmtree(self._training.out)
        self._asked = 0


def engines_of(pid: int) -> list[int]:
    """The embedded engines that a training started: forks of it or of its server."""
    results = [
        int(child)
        for path in Path(f"/proc/{pid}/task").glob("*/children")
        for child in path.read_text().split()
    ]
    engines = [child for child in results if _name(child) == "serve"]
    return engines + [engine for child in results for engine in engines_of(child)]


def _name(pid: int) -> str:
    """Nothing for one that has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def cpu_seconds(pid: int) -> float:
    """Of all its threads; a measure of how far it is, however busy the machine."""
    times = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


def one_line(text: str) -> str:
    """The error that a command ended with; beside it only what it told of a long wait."""
    (line,) = (line for line in text.strip().splitlines() if not WAITED.fullmatch(line))
    return line


FREEZE = '''
import os
import time
from pathlib import Path
from holdfast.training.objective.losses import policy_loss

calls = 0

def loss(batch, objective):
    """Waits in its second step to be frozen, as a laptop that is closed is."""
    global calls
    calls += 1
    if "FREEZE" in os.environ and calls == 2:
        Path("computing").touch()
        while not Path("thawed").exists():
            time.sleep(0.01)
    return policy_loss(batch, objective)
'''


def check_frozen_trainer(training: Training) -> None:
    """Frozen in its second step past its lease, it trains and commits nothing more; meanwhile a
    second one of its name is refused, and takes over when the lease has run out."""
    (training.folder / "own.py").write_text(FREEZE)
    options = ("--loss", "own.py:loss", "--lease", "3")
    frozen = training.start(*options, FREEZE="1")
    try:
        _freeze(frozen, training)
        code, _, err = training.train(*options)
        assert (code != 0, "another process trains in" in one_line(err)) == (True, True)
        other = _take_over(training, options)
        before = other.ledger()
        assert {end for _, end, _, _ in before[0]} == {"trained"}
    finally:
        (training.folder / "thawed").touch()
        frozen.send_signal(signal.SIGCONT)
    _, err = frozen.communicate()
    assert frozen.returncode not in (0, -signal.SIGKILL)
    assert "took" in err or "taken" in err or "lease" in err.lower(), err
    assert "Traceback" not in err
    assert other.ledger() == before
    assert len(list((training.out / "checkpoints").glob("step-*"))) <= 1


def _take_over(training: Training, options: tuple[str, ...]) -> Training:
    """Another process, with a copy of the folder, as soon as the leases have run out."""
    other = Training(training.folder, journal=training.url)
    other.out = training.folder / "copy"
    shutil.copytree(training.out, other.out)
    deadline = time.monotonic() + 120
    while True:
        code, _, err = other.train(*options)
        if code == 0:
            return other
        assert time.monotonic() < deadline, err
        assert "holds it for" in one_line(err) or "works on" in one_line(err), err
        time.sleep(0.5)


def _freeze(process: "subprocess.Popen[str]", training: Training) -> None:
    """In its second step."""
    deadline = time.monotonic() + 120
    while not (training.folder / "computing").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    if training.url:
        process.send_signal(signal.SIGSTOP)
    else:
        freeze(process, Path(training.journal))
