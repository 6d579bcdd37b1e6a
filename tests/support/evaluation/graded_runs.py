"""Runs whose journals are written record by record, so that a test knows every number in them."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.evaluation.stats.results import Results, results_of
from holdfast.journal.sql.journal import Journal
from holdfast.journal.sqlite.journal import MemoryJournal, SqliteJournal
from holdfast.records.errors import Cause
from holdfast.records.failure import Failure
from holdfast.records.message import FunctionCall, Message, Role, ToolCall, assistant, user
from holdfast.records.run import Run, RunSpec
from holdfast.records.step import (
    AttemptFailed,
    Contract,
    EnvironmentStepped,
    Finished,
    Record,
    Refilled,
    Scored,
    ScoringFailed,
    ToolIntent,
    ToolResult,
    ValueRecorded,
)
from holdfast.records.task import Task
from holdfast.records.trajectory import Status
from support.records import generated, joined, spec, started

BROKEN = Failure(
    cause=Cause.INFRASTRUCTURE,
    retryable=True,
    type="ConnectionError",
    message="port 8013 refused",
    traceback="Traceback (most recent call last):\n  net.py\nConnectionError: port 8013 refused",
    attempt=1,
)
BUG = msgspec.structs.replace(
    BROKEN,
    cause=Cause.CODE,
    type="KeyError",
    message="'answer'",
    traceback="Traceback (most recent call last):\n  scorer.py\nKeyError: 'answer'",
    phase="scoring",
)


class RecordedTrajectory(NamedTuple):
    """One trajectory: its records, and how it stands."""

    records: list[Record]
    status: Status = Status.COMPLETED
    settled: bool = True


def scored(
    score: float | None,
    *middle: Record,
    before: Sequence[Record] = (),
    status: Status = Status.COMPLETED,
    reason: str = "",
    metrics: dict[str, float] | None = None,
    reasons: dict[str, str] | None = None,
) -> RecordedTrajectory:
    steps = middle or (generated("0", added=("task:0",)),)
    return RecordedTrajectory(
        [
            *before,
            started(),
            *steps,
            Finished(status, reason, None, 5.0),
            Scored("scorer", score, metrics or {}, reasons or {}, 6.0),
        ],
        status,
    )


def unscored() -> RecordedTrajectory:
    return RecordedTrajectory(
        [started(), generated("0", added=("task:0",)), Finished(Status.COMPLETED, "", None, 5.0)]
    )


def retried(score: float) -> RecordedTrajectory:
    return scored(score, before=[started(), AttemptFailed(BROKEN, 2.0)])


def refilled(score: float) -> RecordedTrajectory:
    before = [started(), AttemptFailed(BROKEN, 2.0), Refilled(1, "spent", 3.0)]
    return scored(score, before=before)


def truncated(score: float, reason: str = "max_turns") -> RecordedTrajectory:
    return scored(score, status=Status.TRUNCATED, reason=reason)


def failed(failure: Failure = BROKEN) -> RecordedTrajectory:
    records: list[Record] = [
        started(),
        AttemptFailed(failure, 2.0),
        Finished(Status.FAILED, failure.root, None, 3.0),
    ]
    return RecordedTrajectory(records, Status.FAILED)


def failed_to_score(failure: Failure = BUG) -> RecordedTrajectory:
    records: list[Record] = [
        started(),
        generated("0", added=("task:0",)),
        Finished(Status.COMPLETED, "", None, 5.0),
        ScoringFailed(failure, 6.0, True),
    ]
    return RecordedTrajectory(records, Status.FAILED)


def running() -> RecordedTrajectory:
    return RecordedTrajectory(
        [started(), generated("0", added=("task:0",))], Status.RUNNING, settled=False
    )


def with_tools(score: float = 1.0) -> RecordedTrajectory:
    """Reasoning, a tool call, an environment's step, a value, and two turns."""
    call = ToolCall("c1", FunctionCall("look_up", '{"word": "kelp", "deep": true}'))
    asks = Message(Role.ASSISTANT, "Let me look.", tool_calls=(call,), reasoning="What is kelp?")
    return scored(
        score,
        generated("0", added=("task:0",), message=asks, ids=[76, 101, 116], delta=[1]),
        ToolIntent("1", b"", "look_up", call.arguments, "c1", Contract.IDEMPOTENT, "k"),
        ToolResult("1", "Kelp is a large brown alga.", seconds=1.25, reward=0.5),
        EnvironmentStepped("2", b"", "7", "You are at sea.", 0.0, False, environment="2"),
        EnvironmentStepped("3", b"", "dive", "You see a holdfast.", 2.5, True, environment="2"),
        ValueRecorded("4", b"", "clock", msgspec.msgpack.encode({"at": 3})),
        generated(
            "5",
            base="0",
            keep=4,
            added=("tool:1", "env:3", user("and now?")),
            message=assistant("Élan: an alga 🌊 with <b>roots</b>."),
            ids=list("Élan: an alga 🌊".encode()),
            logprobs=[-0.01, -0.02, *[-0.2, -0.5, -1.0, -2.0, -4.0, -0.001] * 2, *[-0.3] * 5],
        ),
        metrics={"depth": 12.0, "style": 0.25},
        reasons={"": "It is right.", "style": "a little long"},
    )


async def write(journal: Journal, run: RunSpec, tasks: dict[str, list[RecordedTrajectory]]) -> Run:
    made = [Task(id=name, messages=(user(f"do {name}"),), ground_truth="42") for name in tasks]
    created = await journal.create_run(run, made)
    worker = await joined(journal, created)
    claims = await journal.claim(worker, groups=len(made))
    for claim, messages in zip(claims, tasks.values(), strict=True):
        for lease, message in zip(claim.open, messages, strict=True):
            if message.records:
                await journal.append(
                    lease, message.records, status=message.status, settled=message.settled
                )
    await journal.leave(worker)
    return created


def results(
    tasks: dict[str, list[RecordedTrajectory]], *, name: str = "run", num_runs: int = 1
) -> Results:
    """The results of a run that is only in memory."""

    async def written_results() -> Results:
        journal = MemoryJournal()
        samples = max(map(len, tasks.values()))
        run = await write(journal, spec(name, samples=samples), tasks)
        return await results_of(journal, run, num_runs=num_runs)

    return asyncio.run(written_results())


def journal_at(path: Path, *runs: tuple[RunSpec, dict[str, list[RecordedTrajectory]]]) -> Path:
    """A journal file with these runs."""

    async def write_all() -> None:
        journal = SqliteJournal(path)
        try:
            for run, tasks in runs:
                await write(journal, run, tasks)
        finally:
            await journal.close()

    asyncio.run(write_all())
    return path


def read(path: Path, name: str, use: Callable[[Journal, Run], object]) -> object:
    """What `use` makes of one run of the file."""

    async def used() -> object:
        journal = SqliteJournal(path, read_only=True)
        try:
            run = await journal.find_run(name)
            assert run is not None
            return await use(journal, run)  # type: ignore[misc]
        finally:
            await journal.close()

    return asyncio.run(used())
