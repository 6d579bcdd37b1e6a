"""Where there is nothing to deliver, a consumer is told why, and who would have to do what."""

import asyncio
import logging
from pathlib import Path

import pytest
from msgspec import structs

import holdfast
from holdfast.delivery.waiting import ASK_SECONDS, LOOK_SECONDS, REPEAT_SECONDS, GroupWait
from holdfast.journal.sql.journal import Journal
from holdfast.journal.sqlite.journal import MemoryJournal
from holdfast.records.errors import Cause, DeliveryTimeout, UsageError
from holdfast.records.failure import Failure
from holdfast.records.run import RecordedCommand, Run
from holdfast.records.step import AttemptFailed, Finished
from holdfast.records.trajectory import Status
from holdfast.testing import ManualClock
from support.records import joined, make_tasks, spec, started

COMMAND = RecordedCommand(("run", "agent.py"), "/work")
GO_ON = "holdfast resume run --journal"


async def make_run(journal: Journal, *, command: RecordedCommand | None = COMMAND) -> Run:
    wanted = structs.replace(spec(samples=2), command=command)
    return await journal.create_run(wanted, make_tasks("a", "b"))


def left_behind(path: Path) -> Path:
    """A run on which nobody works any more."""

    async def write() -> None:
        async with holdfast.open_journal(path) as journal:
            run = await make_run(journal)
            worker = await joined(journal, run)
            await journal.leave(worker)

    asyncio.run(write())
    return path


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize("take", [False, True])
def test_a_bound_ends_the_wait_and_names_the_command(tmp_path: Path, take: bool) -> None:
    path = left_behind(tmp_path / "holdfast.db")
    with holdfast.Delivery(path, "run", groups=1, wait=0.0) as delivery:
        with pytest.raises(DeliveryTimeout, match=f"nobody works on it; to go on: {GO_ON} {path}"):
            delivery.take(1) if take else next(iter(delivery))
        assert [entry.reason for entry in delivery.ledger()] == ["rolling out"] * 2


async def test_that_nobody_works_on_a_run_is_logged_at_once_and_rarely_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    journal, clock = MemoryJournal(), ManualClock()
    wait = GroupWait(journal, await make_run(journal), address="j.db", limit=None, clock=clock)
    assert wait.ask_seconds == ASK_SECONDS
    for _ in range(int(REPEAT_SECONDS / ASK_SECONDS)):
        await wait.go_on()
        await clock.advance(ASK_SECONDS)
    (line,) = warnings_of(caplog)
    assert "0 of 4 trajectories settled; nobody works on it" in line
    assert line.endswith(f"{GO_ON} j.db")
    await wait.go_on()
    assert len(warnings_of(caplog)) == 2


async def test_nothing_is_logged_while_somebody_works_on_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    journal, clock = MemoryJournal(), ManualClock()
    run = await make_run(journal)
    worker = await joined(journal, run)
    wait = GroupWait(journal, run, address=None, limit=2 * LOOK_SECONDS, clock=clock)
    await wait.go_on()
    assert not warnings_of(caplog)
    await journal.leave(worker)
    await wait.go_on()
    assert not warnings_of(caplog), "it is looked at now and then"
    await clock.advance(LOOK_SECONDS)
    await wait.go_on()
    (line,) = warnings_of(caplog)
    assert line.endswith("to go on: holdfast resume run"), "nobody knows where the journal is"


async def test_a_bound_holds_while_somebody_works_on_it() -> None:
    journal, clock = MemoryJournal(), ManualClock()
    run = await make_run(journal)
    worker = await joined(journal, run)
    wait = GroupWait(journal, run, address=None, limit=7.0, clock=clock)
    await clock.advance(ASK_SECONDS)
    await wait.go_on()
    assert wait.ask_seconds == 2.0
    await clock.advance(2.0)
    with pytest.raises(DeliveryTimeout, match=f"wait=7 seconds: .*{worker.identity} works on it"):
        await wait.go_on()


async def test_a_run_without_a_command_is_the_business_of_its_program() -> None:
    journal = MemoryJournal()
    run = await make_run(journal, command=None)
    wait = GroupWait(journal, run, address=None, limit=0.0, clock=ManualClock())
    with pytest.raises(DeliveryTimeout, match="start the program again that rolls it out"):
        await wait.go_on()


async def test_a_run_in_which_all_failed_says_how_many_and_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "holdfast.db"
    async with holdfast.open_journal(path) as journal:
        run = await make_run(journal)
        worker = await joined(journal, run)
        bug = Failure(Cause.CODE, retryable=False, type="KeyError", message="x", traceback="")
        for claim in await journal.claim(worker, groups=2):
            for lease in claim.open:
                end = Finished(Status.FAILED, "", None, 2.0)
                records = [started(), AttemptFailed(bug, 1.0), end]
                await journal.append(lease, records, status=Status.FAILED, settled=True)
        await journal.leave(worker)
    with holdfast.Delivery(path, "run", groups=1) as delivery:
        assert list(delivery) == []
        assert list(delivery) == [], "and it is said once"
    (line,) = warnings_of(caplog)
    assert "2 of 2 groups were not delivered (too few valid members)" in line
    assert "4 of 4 trajectories failed for good, for instance run/a/0 (KeyError: x)" in line


@pytest.mark.parametrize("wait", ["soon", -1, float("nan"), True])
def test_a_bound_is_a_number_of_seconds(wait: object) -> None:
    with pytest.raises(UsageError, match="wait must be"):
        holdfast.Delivery("holdfast.db", "run", groups=1, wait=wait)  # type: ignore[arg-type]
