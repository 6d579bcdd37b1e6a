"""The laboratory of the crash suite: run, kill, resume, and compare with an undisturbed run."""

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.journal import open_journal
from holdfast.journal.damage.check import Report, check
from holdfast.journal.damage.check_server import check_server
from holdfast.records.encoding.tokens import count
from holdfast.records.errors import JournalError
from holdfast.records.history import History
from holdfast.records.step import Contract, Generated, ToolIntent
from holdfast.rollout.tool_step import INTERRUPTED
from holdfast.testing import FakeEngine, Fault, FaultKind
from holdfast.testing.fake_engine.options import Seeds
from support.journal import postgres_server

HERE = Path(__file__).parent
SIGKILLED = -9
NAMES = ("read0", "read1", "pay0", "pay1", "build0", "build1", "long0", "bug0")
FAULTS = (
    Fault(FaultKind.ERROR_500, matching="read0/"),
    Fault(FaultKind.RESET_AFTER, matching="read1/1/"),
    Fault(FaultKind.RATE_LIMIT, matching="pay0/0/", retry_after=0.01),
    Fault(FaultKind.NAN_LOGPROB, matching="build0/2/"),
)


@dataclass
class World:
    """What exists at one moment: durable steps, requests seen, effects done."""

    steps: dict[str, set[str]] = field(default_factory=dict)
    dangling: dict[str, Contract] = field(default_factory=dict)
    interrupted: set[str] = field(default_factory=set)
    restarts: set[str] = field(default_factory=set)
    requests: list[str] = field(default_factory=list)
    drafted: dict[str, int] = field(default_factory=dict)
    """Durable tokens of generations that are not finished."""
    tokens: int = 0
    """Tokens that the engine sampled, delivered or not."""
    effects: Counter[str] = field(default_factory=Counter)


class KillableRun:
    """One engine, one zygote, one folder per experiment."""

    def __init__(
        self,
        folder: Path,
        *,
        names=NAMES,
        samples: int = 3,
        concurrency: int = 8,
        partial_tokens: int = 0,
        faults=FAULTS,
        workload: str = "workload",
        replies: tuple[str, ...] = (),
        max_tokens: int = 64,
        seeds: Seeds = "position",
        on_server: bool = False,
        delay: float = 0.0,
    ):
        self.folder = folder
        self.on_server = on_server
        """The journals are on PostgreSQL."""
        self.workload = workload
        self.max_tokens = max_tokens
        self.partial_tokens = partial_tokens
        self.faults = faults
        self.samples = samples
        self.concurrency = concurrency
        self.tasks = folder / "tasks.jsonl"
        self.tasks.write_text(
            "".join(json.dumps({"id": name, "prompt": f"do {name}"}) + "\n" for name in names)
        )
        self.engine = FakeEngine(
            mean_length=16, faults=faults, replies=replies, seeds=seeds, delay=delay
        )
        self.zygote: subprocess.Popen[str] | None = None

    def __enter__(self) -> "KillableRun":
        self.engine.start()
        self.zygote = subprocess.Popen(
            [sys.executable, str(HERE / "zygote.py"), self.workload],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self.zygote is not None
        assert self.zygote.stdin is not None
        self.zygote.stdin.close()
        self.zygote.wait(30)
        self.zygote.stdout.close()
        self.engine.stop()

    def fresh(self, name: str) -> Path:
        """A new experiment: empty folder, engine with its counters and faults as new."""
        place = self.folder / name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        if self.on_server:
            (place / "url").write_text(postgres_server.new_database())
        self.engine.reset()
        self.engine.set_faults(*self.faults)
        return place

    def drive(self, place: Path, *, crash: str = "", **io: object) -> int:
        """Runs the driver to its end, or to its crash; its exit code.

        `io` are the arguments of `FaultyConnections`: which statement fails, and how.
        """
        order = {
            "tasks": str(self.tasks),
            "samples": self.samples,
            "concurrency": self.concurrency,
            "partial_tokens": self.partial_tokens,
            "max_tokens": self.max_tokens,
            "url": self.engine.url,
            "journal": str(self.journal_at(place)),
            "effects": str(place / "effects"),
            "out": str(place / "samples.jsonl"),
            "crash": crash,
            "io": io,
        }
        assert self.zygote is not None
        print(json.dumps(order), file=self.zygote.stdin, flush=True)
        return int(self.zygote.stdout.readline())

    def world(self, place: Path) -> World:
        settle(self.engine)
        world = World(
            requests=[request for request, _ in self.engine.requests()],
            tokens=self.engine.stats().tokens,
        )
        effects = place / "effects"
        if effects.exists():
            world.effects = Counter(effects.read_text().splitlines())
        journal = self.journal_at(place)
        if self.on_server or Path(journal).exists():
            asyncio.run(_read(journal, world))
        return world

    def journal_at(self, place: Path) -> str | Path:
        if not self.on_server:
            return place / "journal.db"
        return (place / "url").read_text()

    def check(self, place: Path) -> Report:
        """That the journal is whole."""
        if not self.on_server:
            return check(place / "journal.db")
        return asyncio.run(check_server(str(self.journal_at(place))))


def settle(engine: FakeEngine) -> None:
    """Waits until requests of a dead driver have reached the engine or are gone."""
    seen = -1
    while (stats := engine.stats()).in_flight or stats.requests != seen:
        seen = stats.requests
        time.sleep(0.02)


async def _read(where: str | Path, world: World) -> None:
    journal = open_journal(where, read_only=True)
    try:
        try:
            run = await journal.find_run("crash")
        except JournalError as error:
            if "is empty" not in str(error):
                raise
            return  # It was killed, or failed, before the file became a journal.
        if run is None:
            return
        async for row, records in journal.histories(run):
            history, name = History(records), str(row.key)
            world.steps[name] = {
                path for path, step in history.steps.items() if isinstance(step, Generated)
            }
            for path, draft in history.drafts.items():
                world.drafted[f"{name}/{path}"] = count(draft.ids)
            for path, step in history.steps.items():
                if isinstance(step, ToolIntent) and path not in history.results:
                    world.dangling[name] = step.contract
            if any(result.error == "interrupted" for result in history.results.values()):
                world.interrupted.add(name)
            if any("start anew" in fork.reason for fork in history.forks):
                world.restarts.add(name)
    finally:
        await journal.close()


@dataclass
class Baseline:
    """The undisturbed run."""

    samples: dict[str, str]
    requests: int
    records: int


def undisturbed(killable: KillableRun) -> Baseline:
    place = killable.fresh("undisturbed")
    assert killable.drive(place) == 0
    world = killable.world(place)
    assert not world.interrupted
    report = killable.check(place)
    assert not report.findings, report.findings
    return Baseline(
        samples=read_samples(place / "samples.jsonl"),
        requests=len(world.requests),
        records=report.records,
    )


def kill_and_resume(killable: KillableRun, baseline: Baseline, plan: str) -> bool:
    """False when the run ended before the crash point was reached."""
    place = killable.fresh(plan.replace(":", "-"))
    code = killable.drive(place, crash=plan)
    if code == 0:
        return False
    assert code == SIGKILLED, plan
    before = killable.world(place)
    assert killable.drive(place) == 0, plan
    verify(baseline, before, killable.world(place), place, killable=killable)
    return True


def kill_in_part(
    killable: KillableRun, baseline: Baseline, when: str, part: int, *, parts: int
) -> None:
    """One kill, at a record boundary in this part of the run."""
    # Spread over the run, and shifted from one half to the other.
    position = (part + (0.25 if when == "after" else 0.75)) / parts
    boundary = max(1, round(position * baseline.records))
    # How many drafts there are is a matter of time: a run may end before one that was slower.
    for _ in range(4):
        if kill_and_resume(killable, baseline, f"{when}:{boundary}"):
            return
        boundary = max(1, boundary * 9 // 10)
    raise AssertionError(f"{when}:{boundary} was not reached")


def kill_everywhere(killable: KillableRun, baseline: Baseline, when: str) -> None:
    """A kill at every record boundary, one run each."""
    boundary = 1
    while kill_and_resume(killable, baseline, f"{when}:{boundary}"):
        boundary += 1
    assert boundary > baseline.records
    print(f"{boundary - 1} kills {when} a commit, over {baseline.records} records")


def read_samples(path: Path) -> dict[str, str]:
    """Lines by trajectory, as they are in the file: equal strings are equal bytes."""
    fields: dict[str, str] = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        name = f"crash/{row['task']}/{row['sample']}"
        fields[name] = fields.get(name, "") + line
    return fields


def verify(
    baseline: Baseline,
    before: World,
    after: World,
    place: Path,
    *,
    killable: KillableRun | None = None,
) -> None:
    """Everything that must hold after a kill and a resume."""
    _same_data(baseline, after, read_samples(place / "samples.jsonl"))
    _nothing_generated_twice(baseline, before, after)
    _effects_obey_contracts(after)
    report = check(place / "journal.db") if killable is None else killable.check(place)
    assert not report.findings, report.findings


def _same_data(baseline: Baseline, after: World, samples: dict[str, str]) -> None:
    assert samples.keys() == baseline.samples.keys()
    for name, lines in samples.items():
        if name in after.interrupted:
            # An at-most-once call that may or may not have happened: the model was told so.
            text = _text(lines)
            assert INTERRUPTED.encode() in text, name
        else:
            assert lines == baseline.samples[name], name


def _text(lines: str) -> bytes:
    decoder, at, text = json.JSONDecoder(), 0, b""
    while at < len(lines):
        row, at = decoder.raw_decode(lines, at)
        text += bytes(token for token in row["token_ids"] if token < 256)
    return text


def _nothing_generated_twice(baseline: Baseline, before: World, after: World) -> None:
    live = after.requests[len(before.requests) :]
    durable = {
        f"{name}/{path}"
        for name, paths in before.steps.items()
        # A world that is gone takes its steps with it: that is what `restart` means.
        if before.dangling.get(name) is not Contract.RESTART and name not in after.restarts
        for path in paths
    }
    again = durable.intersection(live)
    assert not again, f"generated again although durable: {sorted(again)}"
    if not after.restarts:
        seen, kept = set(before.requests), {f"{n}/{p}" for n, s in before.steps.items() for p in s}
        in_flight = Counter(request for request in before.requests if request not in kept)
        assert len(after.requests) <= baseline.requests + in_flight.total(), (
            f"{len(after.requests)} requests, {baseline.requests} undisturbed, "
            f"{in_flight.total()} in flight of {len(seen)}"
        )


def _effects_obey_contracts(after: World) -> None:
    for effect, times in after.effects.items():
        tool, _, key = effect.partition(" ")
        if tool == "pay":
            assert times == 1, f"at most once, but {key} was paid {times} times"
        elif tool == "look_up":
            assert times <= 2, f"one kill can repeat a call once, not {times} times"
