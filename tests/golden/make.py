"""Writes the golden journal of the present schema version: `python tests/golden/make.py`.

It holds every kind of record, in every kind of trajectory. Once a version is released its file is
never written again: it is what people have on their disks.
"""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from holdfast.journal.damage.check import check, repair
from holdfast.journal.sqlite import schema
from holdfast.journal.sqlite.journal import SqliteJournal, plain_connect
from holdfast.records.errors import Cause
from holdfast.records.failure import Failure
from holdfast.records.message import user
from holdfast.records.samples.replica_weights import ReplicaWeights, WeightState
from holdfast.records.step import (
    AttemptFailed,
    Contract,
    EnvironmentStepped,
    Forked,
    Record,
    Refilled,
    ScoringFailed,
    ToolIntent,
    ToolResult,
    VersionSource,
    VersionSpan,
)
from holdfast.records.trajectory import Status
from support.records import (
    consuming,
    finished,
    generated,
    joined,
    make_tasks,
    scored,
    spec,
    started,
    value,
)

HERE = Path(__file__).parent
FAILURE = Failure(Cause.INFRASTRUCTURE, True, "EngineUnavailable", "reset by peer", "Traceback …")


def solved(snapshot: bytes) -> list[Record]:
    """Two turns with a tool between them, an environment, two policy versions, a score."""
    spans = (VersionSpan("v1", 0, 1), VersionSpan("v2", 1, 2, VersionSource.ASSUMED))
    return [
        started(),
        generated("0", delta=[1, 2], ids=[3, 4], logprobs=[-0.5, -0.25], added=("task:0",)),
        ToolIntent("1", b"f", "add", '{"a": 1}', "c1", Contract.AT_MOST_ONCE, "key"),
        ToolResult("1", "42", seconds=0.5),
        EnvironmentStepped("2", b"f", "go", "a door", 0.5, False, snapshot),
        generated(
            "3",
            base="0",
            keep=4,
            delta=[5],
            ids=[6, 7],
            versions=spans,
            added=("tool:1", user("Größe? 尺寸 🌊")),
        ),
        finished(),
        scored(0.75),
    ]


def troubled() -> list[Record]:
    """Fails, forks, is rolled out anew, and comes to its end."""
    return [
        started(),
        generated("0", delta=[1], ids=[2]),
        AttemptFailed(FAILURE, 1.0),
        started(2),
        Forked("0", "diverged on replay", "another prompt", 2.0),
        generated("0", delta=[1], ids=[3]),
        AttemptFailed(FAILURE, 3.0),
        Refilled(1, "budget spent", 4.0),
        started(3),
        generated("0", delta=[1], ids=[4, 5]),
        finished(Status.TRUNCATED),
    ]


def unscored() -> list[Record]:
    return [
        started(),
        generated("0"),
        finished(),
        ScoringFailed(FAILURE, 1.0, final=False),
        ScoringFailed(FAILURE, 2.0, final=True),
    ]


async def fill(path: Path) -> None:
    journal = SqliteJournal(path)
    run = await journal.create_run(spec("golden"), make_tasks("a", "b", "c", "d"))
    worker = await joined(journal, run)
    a, b, c, _ = await journal.claim(worker, groups=4)
    snapshot = await journal.put_blob(b"the state of the world")
    await journal.append(a.open[0], solved(snapshot), status=Status.COMPLETED, settled=True)
    await journal.append(a.open[1], troubled(), status=Status.TRUNCATED, settled=True)
    for lease in b.open:
        await journal.append(lease, unscored(), status=Status.FAILED, settled=True)
    await journal.reopen(run, reason="the judge is back")
    await journal.append(c.open[0], [started(), value(0), value(1)], status=Status.RUNNING)
    trainer = await consuming(journal, run)
    for step, name in enumerate(("v1", "v2")):
        await journal.publish_version(
            run, name, step=step, digest=f"sha256:{name}", consumer=trainer
        )
    sent = ReplicaWeights("http://127.0.0.1:8000", WeightState.CHECKED, "a", "v2", "policy")
    await journal.note_weights(run, sent, consumer=trainer)
    await journal.next_batch(trainer, 1, groups=1)
    await journal.commit(trainer, 1)
    await journal.unsubscribe(trainer)
    await journal.amend_run(run, run.spec, make_tasks("a", "b", "c", "e"), differences=["tasks"])
    await journal.leave(worker)
    stream = await journal.create_run(spec("stream"), [], sealed=False)
    await journal.admit(stream, make_tasks("a", "a@2"))
    await journal.close()


def tear(path: Path) -> None:
    """One record that a disk lost, already cut: `cuts` has a row."""
    connection = plain_connect(f"{path.absolute().as_uri()}?mode=rw")
    connection.execute("UPDATE records SET crc = crc + 1 WHERE trajectory = 5 AND seq = 2")
    connection.close()
    assert len(repair(path)) == 1


def main() -> None:
    path = HERE / f"journal-v{schema.VERSION}.db"
    path.unlink(missing_ok=True)
    asyncio.run(fill(path))
    tear(path)
    report = check(path)
    assert report.is_clean, report.findings
    print(f"{path}: {report.records} records, {report.bytes:,} bytes")


if __name__ == "__main__":
    main()
