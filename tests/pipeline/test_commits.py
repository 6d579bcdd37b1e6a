"""Another process's commit wakes who waits here, long before the journal would look by itself."""

import asyncio
import subprocess
import sys

from holdfast.journal import open_journal
from holdfast.pipeline.parts import notice_commits, shared_journal
from support.records import make_tasks, spec

ADMIT = """
import asyncio, sys
from holdfast.journal import open_journal
from holdfast.records.message import user
from holdfast.records.task import Task

async def main():
    journal = open_journal(sys.argv[1])
    run = await journal.find_run("run")
    await journal.admit(run, [Task(id="other", messages=(user("x"),))])
    await journal.close()

asyncio.run(main())
"""


async def test_the_commit_of_another_process_is_a_change(tmp_path):
    address = str(tmp_path / "journal.db")
    async with shared_journal(address) as journal:
        run = await journal.create_run(spec(), make_tasks("a"), sealed=False)
        await asyncio.sleep(0.2)  # Our own commits are behind us.
        seen = journal.changes.count
        waiting = asyncio.create_task(journal.changes.wait(seen, timeout=300))
        command = [sys.executable, "-c", ADMIT, address]
        other = await asyncio.to_thread(subprocess.run, command, check=False)
        assert other.returncode == 0
        assert await waiting, "it was woken"
        assert (await journal.progress(run)).planned == 4


async def test_a_journal_that_is_no_file_is_left_alone(tmp_path):
    journal = open_journal(str(tmp_path / "journal.db"))
    try:
        await asyncio.wait_for(notice_commits("postgresql://x/y", journal.changes), 60)
    finally:
        await journal.close()
