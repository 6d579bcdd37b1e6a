"""Every invariant that the check names is one that it really looks at."""

import asyncio
import math
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.journal.damage.check import check
from holdfast.journal.sqlite import schema
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.records.errors import JournalError, NotAJournal
from holdfast.records.step import (
    Contract,
    EnvironmentStepped,
    Forked,
    Record,
    Refilled,
    Reopened,
    ToolIntent,
    ToolResult,
    VersionSpan,
)
from holdfast.records.trajectory import Status
from support.records import (
    consuming,
    finished,
    generated,
    joined,
    make_tasks,
    ready,
    scored,
    settle,
    spec,
    sql,
    started,
    value,
    values,
)


def log(
    path: Path, records: Sequence[Record], *, status: Status = Status.RUNNING, settled: bool = False
) -> None:
    """A journal with one trajectory that holds `records`."""

    async def write() -> None:
        journal = SqliteJournal(path)
        _, worker, claims = await ready(journal, "a", samples=1)
        await journal.put_blob(b"snapshot")
        await journal.append(claims[0].open[0], records, status=status, settled=settled)
        await journal.leave(worker)
        await journal.close()

    asyncio.run(write())


def intent(path: str) -> ToolIntent:
    return ToolIntent(path, b"", "tool", "{}", "c1", Contract.IDEMPOTENT, "key")


def environment(snapshot: bytes) -> EnvironmentStepped:
    return EnvironmentStepped("0", b"", "go", "seen", 0.0, False, snapshot)


def span(start: int, end: int) -> VersionSpan:
    return VersionSpan("v", start, end)


async def test_a_whole_journal_is_clean_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    run, _, claims = await ready(journal, "a", "b", samples=2)
    await settle(journal, claims[0])
    await journal.append(claims[1].open[0], values(1, 2, 3), status=Status.RUNNING)
    await journal.put_blob(b"one")
    trainer = await consuming(journal, run)
    await journal.next_batch(trainer, 1, groups=1)
    await journal.commit(trainer, 1)
    await journal.create_run(spec("other"), make_tasks("c"))
    await journal.close()
    report = check(path)
    assert report.findings == []
    assert report.is_clean
    assert (report.runs, report.tasks, report.trajectories) == (2, 3, 6)
    assert (report.records, report.blobs, report.cuts, report.deliveries) == (7, 1, 0, 1)
    assert report.bytes == path.stat().st_size


GOOD: dict[str, list[Record]] = {
    "a turn, a tool and an end": [
        started(),
        generated("0"),
        intent("1"),
        ToolResult("1", "42"),
        generated("2", base="0", keep=5, delta=[9], versions=(span(0, 1), span(1, 3))),
        finished(),
    ],
    "a broken prefix": [started(), generated("0"), generated("1", base="0", keep=2), finished()],
    "a fork": [
        started(),
        generated("0"),
        generated("1", base="0", keep=5),
        Forked("1", "diverged", "", 1.0),
        started(2),
        generated("1", base="0", keep=4),
        finished(),
    ],
    "a refill": [
        started(),
        generated("0"),
        Refilled(1, "spent", 1.0),
        started(2),
        generated("0"),
        finished(),
    ],
    "a second life": [
        started(),
        finished(Status.FAILED),
        Reopened("again", 1.0),
        started(2),
        finished(),
    ],
}


@pytest.mark.parametrize("name", GOOD)
def test_what_a_run_may_write_is_clean(tmp_path: Path, name: str) -> None:
    path = tmp_path / "journal.db"
    log(path, GOOD[name], status=Status.COMPLETED, settled=True)
    assert check(path).findings == []


BAD: dict[str, list[Record]] = {
    "has 3 tokens and 2 logprobs": [generated("0", logprobs=[-1.0, -1.0])],
    "is a generation without tokens": [generated("0", ids=[], versions=())],
    "has a logprob that is not finite": [generated("0", logprobs=[-1.0, math.nan, -1.0])],
    "version spans that do not cover its 3 tokens": [generated("0", versions=(span(0, 2),))],
    "version spans that do not cover its 3": [generated("0", versions=(span(0, 2), span(1, 3)))],
    "version spans that do not cover": [generated("0", versions=())],
    "continues step 7, which is not an earlier generation": [generated("0", base="7")],
    "continues step 0, which is not an earlier generation": [value(0), generated("1", base="0")],
    "keeps 6 tokens of a stream of 5": [generated("0"), generated("1", base="0", keep=6)],
    "keeps 1 tokens of a stream of 0": [generated("0", keep=1)],
    "is the result of step 4, which has no intent": [ToolResult("4", "42")],
    "is the result of step 0, which has no intent": [generated("0"), ToolResult("0", "42")],
    "starts attempt 2 after 0 others": [started(2)],
    "starts attempt 1 after 1 others": [started(), started()],
    "scores a trajectory that has not finished": [started(), scored()],
    "needs blob 00000000": [environment(b"\0" * 32)],
}


@pytest.mark.parametrize("what", BAD)
def test_what_no_run_may_write_is_found(tmp_path: Path, what: str) -> None:
    path = tmp_path / "journal.db"
    log(path, BAD[what])
    (finding,) = check(path).findings
    last = len(BAD[what]) - 1
    assert finding.where.startswith(f"run/a/0, record {last} (position ")
    assert what in finding.what
    assert finding.remedy


STATES = [
    ("is marked FAILED; its log says COMPLETED", [finished()], Status.FAILED, True),
    ("is marked COMPLETED, but its log does not end", [started()], Status.COMPLETED, False),
    ("is settled, but its log does not end", [started()], Status.RUNNING, True),
]


@pytest.mark.parametrize(("what", "records", "status", "settled"), STATES)
def test_a_state_that_its_log_does_not_bear_out_is_found(
    tmp_path: Path, what: str, records: list[Record], status: Status, settled: bool
) -> None:
    path = tmp_path / "journal.db"
    log(path, records, status=status, settled=settled)
    (finding,) = check(path).findings
    assert (finding.where, finding.what) == ("run/a/0", what)


DAMAGES = {
    "task run/a: task 'a' fails its checksum": "UPDATE tasks SET body = body || x'00'",
    "task run/a: task 'a' fails": "UPDATE tasks SET crc = crc + 1",
    "run run: run 'run': its description does not decode": "UPDATE runs SET spec = x'ff'",
    "blob": "UPDATE blobs SET body = x'00'",
    "run/a/0: has status 9": "UPDATE trajectories SET status = 9",
    "run/a/0, record 0 (position 1): was written under epoch 1; the trajectory is at 0": (
        "UPDATE trajectories SET epoch = 0"
    ),
    "trajectory 1: 2 records of a trajectory that is not there": "DELETE FROM trajectories",
    "?/0/0: belongs to no run": "UPDATE trajectories SET run = 7",
    "consumer trainer, step 1: task 0 of run run was delivered before": (
        "INSERT INTO deliveries VALUES (1, 0, 'trainer', 1, 1, 1, 0, '')"
    ),
    "consumer trainer, step 1: the 1 groups of its batch": (
        "INSERT INTO deliveries VALUES (1, 0, 'trainer', 1, 1, 1, 3, '')"
    ),
    "consumer trainer: its entry for task 0 of run 1 makes no sense": (
        "INSERT INTO deliveries VALUES (1, 0, 'trainer', 9, 1, 1, 0, '')"
    ),
    "consumer trainer: its commit in run 7": (
        "INSERT INTO consumers VALUES (7, 'trainer', 1, 0, 0, '', 0, '', '', 0, '', 0, 0)"
    ),
    "run 1: its 1 weight versions": "INSERT INTO versions VALUES (1, 2, 'v', 1, 'digest')",
    "run 7: takes tasks, and is not there": "INSERT INTO streams VALUES (7)",
    "file, task_groups: does not count what is there, in run 1": "DELETE FROM task_groups",
    "file, totals: does not count what is there, in run 1": "UPDATE totals SET settled = 1",
}


@pytest.mark.parametrize("what", DAMAGES)
def test_damage_outside_the_logs_is_found(tmp_path: Path, what: str) -> None:
    path = tmp_path / "journal.db"
    log(path, [started(), value(1)])
    sql(path, DAMAGES[what])
    findings = [str(finding) for finding in check(path).findings]
    assert any(finding.startswith(what) for finding in findings), findings


def test_an_epoch_that_goes_back_is_found(tmp_path: Path) -> None:
    from holdfast.records.encoding.codec import checksum, encode

    path = tmp_path / "journal.db"
    log(path, [started(), value(1)])
    crc = checksum(encode(value(1)), trajectory=1, seq=1, epoch=0)
    sql(path, "UPDATE records SET epoch = 0, crc = ? WHERE seq = 1", crc)
    (finding,) = check(path).findings
    assert finding.what == "was written under epoch 0, after one of epoch 1"


def test_a_delivery_of_an_index_that_lost_its_row_is_found(tmp_path: Path) -> None:
    """Without its unique index nothing stops a second delivery; the check looks at the rows."""
    path = tmp_path / "journal.db"
    log(path, [started(), finished()], status=Status.COMPLETED, settled=True)
    sql(
        path,
        "CREATE TABLE twice AS SELECT 1 run, 'x' consumer, 0 task, 1 step, 0 place, 1 state, "
        "1 settled, '' reason",
    )
    sql(path, "DROP TABLE deliveries")
    sql(path, "ALTER TABLE twice RENAME TO deliveries")
    sql(path, "INSERT INTO deliveries SELECT * FROM deliveries")
    assert "was delivered 2 times" in " ".join(map(str, check(path).findings))


async def test_all_damage_is_reported_not_only_the_first(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    _, _, claims = await ready(journal, "a", "b", "c", samples=2)
    for claim in claims:
        for lease in claim.open:
            await journal.append(lease, values(1, 2, 3), status=Status.RUNNING)
    await journal.put_blob(b"one")
    await journal.close()
    sql(path, "UPDATE records SET crc = crc + 1 WHERE trajectory IN (1, 3, 6) AND seq = 1")
    sql(path, "UPDATE tasks SET crc = crc + 1 WHERE id = 'b'")
    sql(path, "UPDATE blobs SET body = x'00'")
    report = check(path)
    assert [finding.where.partition(" (")[0] for finding in report.findings] == [
        "task run/b",
        "run/a/0, record 1",
        "run/b/0, record 1",
        "run/c/1, record 1",
        report.findings[-1].where,
    ]
    assert report.findings[-1].where.startswith("blob ")
    assert report.records == 18


def test_damaged_pages_are_findings_not_exceptions(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    log(path, [value(number, size=2_000) for number in range(50)])
    content = bytearray(path.read_bytes())
    ((root,),) = sql(path, "SELECT rootpage FROM sqlite_schema WHERE name = 'blobs'")
    start = (int(str(root)) - 1) * schema.PAGE_SIZE
    content[start : start + 100] = b"\xff" * 100
    path.write_bytes(content)
    report = check(path)
    assert {finding.where for finding in report.findings} >= {"file, pages", "file, blobs"}
    assert report.records == 50


def test_the_check_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    log(path, [started(), value(1)])
    sql(path, "UPDATE records SET crc = 0")
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    assert len(check(path).findings) == 1
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


async def test_a_journal_in_use_can_be_checked(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    run = await journal.create_run(spec(samples=1), make_tasks("a"))
    (claim,) = await journal.claim(await joined(journal, run), groups=1)
    going = True

    async def keep_writing() -> None:
        while going:
            await journal.append(claim.open[0], values(1), status=Status.RUNNING)

    writing = asyncio.ensure_future(keep_writing())
    for _ in range(10):
        report = await asyncio.to_thread(check, path)
        assert report.findings == []
    going = False
    await writing
    await journal.close()


def test_what_is_no_journal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="there is no journal"):
        check(tmp_path / "journal.db")
    (tmp_path / "notes.txt").write_text("notes " * 1000)
    with pytest.raises(NotAJournal):
        check(tmp_path / "notes.txt")


def test_memory_stays_flat_however_long_the_journal_is(tmp_path: Path) -> None:
    def peak(trajectories: int) -> int:
        path = tmp_path / f"{trajectories}.db"

        async def fill() -> None:
            journal = SqliteJournal(path)
            names = [str(number) for number in range(trajectories)]
            _, _, claims = await ready(journal, *names, samples=1)
            for claim in claims:
                records = [value(number, size=5_000) for number in range(20)]
                await journal.append(claim.open[0], records, status=Status.RUNNING)
            await journal.close()

        asyncio.run(fill())
        tracemalloc.start()
        try:
            assert check(path).findings == []
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    # 100 KB for each trajectory: ten times as many would take 9 MB more if they were kept.
    assert peak(100) - peak(10) < 500_000
