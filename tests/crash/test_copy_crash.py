"""SIGKILL in `journal copy`: all runs are in the target, or none; the same command copies them."""

import asyncio
from pathlib import Path

import pytest

from holdfast.journal import opened_journal
from holdfast.journal.damage.check import check
from holdfast.journal.damage.check_server import check_server
from holdfast.journal.sql.journal import Journal
from support.cli.shell import end, start
from support.crash.killable_run import SIGKILLED
from support.exhaustive import points
from support.journal import postgres_server as server
from support.records import consuming, joined, make_tasks, settle, spec

KINDS = ["before", "after", "witnessed"]
COMMITS = 9
"""What a copy of two runs commits, at the least: each is begun, written, finished, and named."""
needs_server = pytest.mark.skipif(not server.is_available(), reason="needs a PostgreSQL server")


async def fill(journal: Journal) -> None:
    for name in ("first", "second"):
        run = await journal.create_run(spec(name), make_tasks(*"abc"))
        worker = await joined(journal, run)
        for claim in reversed(await journal.claim(worker, groups=2)):
            await settle(journal, claim)
        await journal.leave(worker)
        trainer = await consuming(journal, run)
        await journal.next_batch(trainer, 1, groups=1)
        await journal.unsubscribe(trainer)


def using(where: str, do) -> object:
    async def use() -> object:
        async with opened_journal(where) as journal:
            return await do(journal)

    return asyncio.run(use())


async def names(journal: Journal) -> list[str]:
    return [row.name for row in await journal.runs()]


@pytest.mark.parametrize("way", ["file", pytest.param("server", marks=needs_server)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_kill_leaves_all_runs_or_none_and_the_same_command_copies_them(
    tmp_path: Path, way: str, kind: str
) -> None:
    using(str(tmp_path / "a.db"), fill)
    step = max(1, COMMITS // points(3, COMMITS))
    for number in range(1, COMMITS + 1, step):
        target = str(tmp_path / f"{number}.db") if way == "file" else server.emptied_database()
        using(target, names)
        arguments = ("journal", "copy", "a.db", target)
        crash = {"HOLDFAST_CRASH": f"{kind}:{number}"}
        killed = end(start(*arguments, cwd=tmp_path, env=crash))
        results = using(target, names)
        there = [name for name in results if not name.endswith("(being copied)")]
        assert there in ([], ["first", "second"]), results
        assert killed.code in (SIGKILLED, 0), killed.err
        if not there:
            assert killed.code == SIGKILLED
            assert end(start(*arguments, cwd=tmp_path)).code == 0
        assert using(target, names) == ["first", "second"]
        report = check(Path(target)) if way == "file" else asyncio.run(check_server(target))
        assert report.findings == []
