"""Small valid values, so that a test spells out only what it is about."""

import os
from collections.abc import Sequence
from pathlib import Path

from holdfast.journal.process import this_process
from holdfast.journal.sql.journal import Journal
from holdfast.journal.sqlite.journal import plain_connect
from holdfast.journal.types import Claim, Consumer, Lease, Worker, WorkerIdentity
from holdfast.records.encoding.tokens import pack_ids, pack_logprobs
from holdfast.records.group import GroupPolicy
from holdfast.records.message import Message, assistant, user
from holdfast.records.run import Run, RunSpec
from holdfast.records.sampling import Sampling
from holdfast.records.step import (
    AttemptStarted,
    Finished,
    Generated,
    Record,
    Scored,
    ValueRecorded,
    VersionSpan,
)
from holdfast.records.task import Task
from holdfast.records.trajectory import Status


def spec(name: str = "run", *, samples: int = 2, group: GroupPolicy | None = None) -> RunSpec:
    return RunSpec(
        name=name,
        samples=samples,
        model="model",
        sampling=Sampling(),
        seed=None,
        rollout="solve",
        scorer="",
        renderer="fake",
        tasks="digest",
        group=group or GroupPolicy(),
    )


def make_tasks(*names: str) -> list[Task]:
    return [Task(id=name, messages=(user(f"do {name}"),)) for name in names]


def value(number: int, size: int = 0) -> ValueRecorded:
    return ValueRecorded(str(number), b"", "v", b"x" * size)


def values(*numbers: int) -> list[Record]:
    return [value(number) for number in numbers]


def started(attempt: int = 1) -> AttemptStarted:
    return AttemptStarted(attempt, "worker", 1.0)


def finished(status: Status = Status.COMPLETED) -> Finished:
    return Finished(status, "returned", 1.0, 2.0)


def scored(reward: float = 1.0) -> Scored:
    return Scored("scorer", reward, {}, {}, 3.0)


def generated(
    path: str,
    *,
    base: str = "",
    keep: int = 0,
    delta: Sequence[int] = (1, 2),
    ids: Sequence[int] = (3, 4, 5),
    logprobs: Sequence[float] | None = None,
    versions: tuple[VersionSpan, ...] | None = None,
    message: Message | None = None,
    added: tuple[Message | str, ...] = (),
    prefix_break: str = "",
) -> Generated:
    return Generated(
        path=path,
        fingerprint=b"f",
        base=base,
        keep=keep,
        delta=pack_ids(delta),
        ids=pack_ids(ids),
        logprobs=pack_logprobs([-0.5] * len(ids) if logprobs is None else logprobs),
        engine_finish_reason="stop",
        versions=(VersionSpan("v1", 0, len(ids)),) if versions is None else versions,
        message=message or assistant(f"reply {path}"),
        added=added,
        model="model",
        sampling=Sampling(),
        prefix_break=prefix_break,
    )


def me() -> WorkerIdentity:
    return this_process()


def someone_else(pid: int = 1) -> WorkerIdentity:
    """A worker on another machine: nobody here can tell whether it is gone."""
    return WorkerIdentity("elsewhere", pid, "")


async def joined(
    journal: Journal, run: Run, *, share: bool = True, lease_seconds: float = 600.0
) -> Worker:
    return await journal.join(run, me(), lease_seconds=lease_seconds, share=share)


async def consuming(
    journal: Journal, run: Run, name: str = "trainer", *, lease_seconds: float = 600.0
) -> Consumer:
    return await journal.subscribe(run, name, me(), lease_seconds=lease_seconds)


async def ready(
    journal: Journal, *names: str, samples: int = 2, group: GroupPolicy | None = None
) -> tuple[Run, Worker, list[Claim]]:
    """A run with these tasks, a worker, and the claims of all its groups."""
    run = await journal.create_run(spec(samples=samples, group=group), make_tasks(*names))
    worker = await joined(journal, run)
    return run, worker, await journal.claim(worker, groups=len(names))


async def settle(journal: Journal, claim: Claim, *, status: Status = Status.COMPLETED) -> None:
    """Every open member of the group ends with `status`."""
    for lease in claim.open:
        await settle_one(journal, lease, status=status)


async def settle_one(journal: Journal, lease: Lease, *, status: Status = Status.COMPLETED) -> None:
    await journal.append(lease, [started(), finished(status)], status=status, settled=True)


def sql(path: Path, statement: str, *parameters: object) -> list[tuple[object, ...]]:
    """Runs one statement on the file, behind the journal's back."""
    connection = plain_connect(f"{path.absolute().as_uri()}?mode=rw")
    try:
        return connection.execute(statement, parameters).fetchall()
    finally:
        connection.close()


def files_open(path: Path) -> int:
    """How many descriptors this process has on the file and its log."""
    links = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
    return sum(_target(link).startswith(str(path)) for link in links)


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""
