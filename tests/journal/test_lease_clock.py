"""Leases go by a clock that nobody can set; that the other one was set is logged."""

import asyncio
import logging
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from holdfast.journal.damage.check import repair
from holdfast.journal.lease_clock import BootClock, Instant
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.records.errors import LeaseLost, RunHeld
from support.namespaces import (
    IN_A_PID_NAMESPACE,
    IN_A_TIME_NAMESPACE,
    needs_namespaces,
    needs_time_namespaces,
)
from support.records import make_tasks, me, someone_else, spec, values

LEASE = 30.0
YEAR = 365 * 86400.0


class SetClock:
    """Two clocks that are set by hand. Without a name, there is the wall clock alone."""

    def __init__(self, name: str = "this boot"):
        self.now = Instant(name, 1_000.0, 1_700_000_000.0)

    def read(self) -> Instant:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now = structs.replace(
            self.now, ticks=self.now.ticks + seconds, wall=self.now.wall + seconds
        )

    def set_wall(self, seconds: float) -> None:
        self.now = structs.replace(self.now, wall=self.now.wall + seconds)

    def reboot(self) -> None:
        self.now = structs.replace(self.now, clock="the next boot", ticks=20.0)


Body = Callable[[SqliteJournal, SetClock], Awaitable[None]]


def check(folder: Path, body: Body, clock: SetClock | None = None) -> None:
    clock = clock or SetClock()

    async def with_journal() -> None:
        journal = SqliteJournal(folder / "journal.db", lease_clock=clock)
        try:
            await body(journal, clock)
        finally:
            await journal.close()

    asyncio.run(with_journal())


@pytest.mark.parametrize("jump", [YEAR, -YEAR], ids=["forward", "back"])
def test_setting_the_clock_ends_no_lease_and_prolongs_none(tmp_path: Path, jump: float) -> None:
    async def body(journal: SqliteJournal, clock: SetClock) -> None:
        run = await journal.create_run(spec(samples=1), make_tasks("a"))
        there = await journal.join(run, someone_else(), lease_seconds=LEASE, share=True)
        (held,) = await journal.claim(there, groups=1)
        here = await journal.join(run, me(), lease_seconds=YEAR, share=True)
        clock.set_wall(jump)
        assert await journal.claim(here, groups=1) == []
        await journal.append(held.open[0], values(1))
        clock.pass_by(LEASE + 1)
        assert len(await journal.claim(here, groups=1)) == 1
        with pytest.raises(LeaseLost):
            await journal.append(held.open[0], values(2))

    check(tmp_path, body)


def test_a_lease_of_an_earlier_boot_ends_by_the_wall_clock(tmp_path: Path) -> None:
    async def body(journal: SqliteJournal, clock: SetClock) -> None:
        run = await journal.create_run(spec(), make_tasks("a"))
        await journal.join(run, someone_else(), lease_seconds=LEASE, share=False)
        clock.reboot()
        with pytest.raises(RunHeld):
            await journal.join(run, me(), lease_seconds=LEASE, share=False)
        clock.pass_by(LEASE + 1)
        await journal.join(run, me(), lease_seconds=LEASE, share=False)

    check(tmp_path, body)


def test_after_a_reboot_that_lost_the_time_nobody_waits_for_it_to_come_again(
    tmp_path: Path,
) -> None:
    async def body(journal: SqliteJournal, clock: SetClock) -> None:
        run = await journal.create_run(spec(), make_tasks("a"))
        await journal.join(run, someone_else(), lease_seconds=LEASE, share=False)
        clock.reboot()
        clock.set_wall(-YEAR)
        await journal.join(run, me(), lease_seconds=LEASE, share=False)

    check(tmp_path, body)


def test_without_such_a_clock_leases_go_by_the_wall_clock(tmp_path: Path) -> None:
    async def body(journal: SqliteJournal, clock: SetClock) -> None:
        run = await journal.create_run(spec(), make_tasks("a"))
        await journal.join(run, someone_else(), lease_seconds=LEASE, share=False)
        clock.set_wall(LEASE - 1)
        with pytest.raises(RunHeld):
            await journal.join(run, me(), lease_seconds=LEASE, share=False)
        clock.set_wall(2)
        await journal.join(run, me(), lease_seconds=LEASE, share=False)

    check(tmp_path, body, SetClock(""))


@pytest.mark.parametrize(("jump", "text"), [(3600, "3600 s forward"), (-60, "60 s back")])
def test_a_jump_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, jump: float, text: str
) -> None:
    async def body(journal: SqliteJournal, clock: SetClock) -> None:
        run = await journal.create_run(spec(), make_tasks("a"))
        worker = await journal.join(run, me(), lease_seconds=LEASE, share=False)
        for seconds in (0.0, 0.5, jump, -0.5):
            clock.pass_by(10)
            clock.set_wall(seconds)
            await journal.heartbeat(worker)

    with caplog.at_level(logging.WARNING, logger="holdfast.journal"):
        check(tmp_path, body)
    (record,) = caplog.records
    assert text in record.getMessage()


def _read_by_another(*around: str) -> Instant:
    script = (
        "import msgspec; from holdfast.journal.lease_clock import BootClock;"
        "print(msgspec.json.encode(BootClock().read()).decode())"
    )
    command = [*around, sys.executable, "-c", script]
    stdout = subprocess.run(command, capture_output=True, check=True).stdout
    return msgspec.json.decode(stdout, type=Instant)


@pytest.mark.parametrize("around", [(), pytest.param(IN_A_PID_NAMESPACE, marks=needs_namespaces)])
def test_all_processes_of_a_boot_read_one_clock_in_containers_too(around: tuple[str, ...]) -> None:
    before = BootClock().read()
    read = _read_by_another(*around)
    after = BootClock().read()
    assert read.clock == before.clock != ""
    assert before.ticks <= read.ticks <= after.ticks


@needs_time_namespaces
def test_clocks_that_were_moved_by_a_time_namespace_are_not_compared() -> None:
    read = _read_by_another(*IN_A_TIME_NAMESPACE)
    assert read.ticks > BootClock().read().ticks + 900_000
    assert read.clock != BootClock().read().clock


def test_whoever_lists_or_repairs_goes_by_the_same_clock(tmp_path: Path) -> None:
    """As if the clock had been set back and forth by a year after the last heartbeat."""

    async def hold() -> None:
        journal = SqliteJournal(tmp_path / "journal.db")
        run = await journal.create_run(spec(), make_tasks("a"))
        await journal.join(run, someone_else(), lease_seconds=YEAR, share=False)
        await journal.close()

    async def live() -> tuple[str, ...]:
        journal = SqliteJournal(tmp_path / "journal.db", read_only=True)
        try:
            (row,) = await journal.runs()
            return row.live_workers
        finally:
            await journal.close()

    def change(sql: str) -> None:
        connection = sqlite3.connect(tmp_path / "journal.db")
        connection.execute(sql)
        connection.commit()
        connection.close()

    asyncio.run(hold())
    change(f"UPDATE workers SET lease_until = lease_until - {3 * YEAR}")
    assert asyncio.run(live()) == (str(someone_else()),)
    with pytest.raises(RunHeld):
        repair(tmp_path / "journal.db")
    change(f"UPDATE workers SET lease_until = lease_until + {6 * YEAR}, clock_until = 0")
    assert asyncio.run(live()) == ()
    repair(tmp_path / "journal.db")
