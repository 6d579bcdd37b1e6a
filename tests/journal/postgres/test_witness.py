"""What a machine has noted of a server's commits outlives its commands, and nobody else's."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.journal.damage.check_server import check_server, repair_server
from holdfast.journal.files import witness as files
from holdfast.journal.postgres import schema
from holdfast.journal.postgres.journal import PostgresJournal
from holdfast.journal.postgres.schema import acknowledged_commits
from holdfast.records.errors import LostCommits
from support.journal import postgres_server as server
from support.journal.own_server import OwnServer, own_server
from support.records import make_tasks, ready, spec, values

pytestmark = pytest.mark.skipif(not server.is_available(), reason="needs a PostgreSQL server")

# One more commit, and a death without a goodbye.
COMMIT_AND_DIE = """
import asyncio, os, signal, sys
from holdfast.journal.postgres.journal import PostgresJournal
from support.records import make_tasks, spec

async def use():
    await PostgresJournal(sys.argv[1]).create_run(spec("second"), make_tasks("b"))
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(use())
"""


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "holdfast" / "journals"


@pytest.fixture
def rolled_back(state: Path) -> Iterator[OwnServer]:
    """A server without the last commit of a command that is gone, as after a failover."""
    with own_server() as own:

        async def begin() -> None:
            journal = PostgresJournal(own.url)
            await ready(journal, "a", samples=1)
            await journal.close()

        asyncio.run(begin())
        older = own.folder / "older"
        own.kill(signal.SIGINT)
        own.copy(older)
        own.start()
        environment = os.environ | {"PYTHONPATH": "tests"}
        died = subprocess.run(
            [sys.executable, "-c", COMMIT_AND_DIE, own.url], env=environment, check=False
        )
        assert died.returncode == -signal.SIGKILL
        own.kill(signal.SIGINT)
        own.put_back(older)
        own.start()
        yield own


def identity_of(url: str) -> str:
    (row,) = server.run_sql(url, "SELECT value FROM holdfast.meta WHERE name = 'identity'")
    return str(row[0])


async def _list(url: str, *, read_only: bool) -> list[str]:
    journal = PostgresJournal(url, read_only=read_only)
    try:
        if not read_only:
            await journal.put_blob(b"y")
        return [row.name for row in await journal.runs()]
    finally:
        await journal.close()


def test_a_command_that_is_started_after_a_failover_refuses_the_server(rolled_back, monkeypatch):
    url = rolled_back.url
    for read_only in (True, False, True):
        with pytest.raises(LostCommits, match="has lost 1 commit that it had acknowledged"):
            asyncio.run(_list(url, read_only=read_only))
    (finding,) = asyncio.run(check_server(url)).findings
    assert "has lost 1 commit" in finding.what
    # From the first command that may write on, other machines know it, too.
    monkeypatch.setenv("XDG_STATE_HOME", "/nonexistent")
    with pytest.raises(LostCommits):
        asyncio.run(_list(url, read_only=True))


def test_a_loss_that_is_accepted_is_accepted_on_every_machine(rolled_back):
    url = rolled_back.url
    rolled_back.psql("runs", "DELETE FROM holdfast.workers")
    cuts, given_up = asyncio.run(repair_server(url))
    assert cuts == []
    assert "has lost 1 commit" in given_up
    # The notes of this machine, as of any other, are of the journal as it was.
    assert asyncio.run(_list(url, read_only=False)) == ["run"]
    assert asyncio.run(check_server(url)).findings == []
    assert asyncio.run(repair_server(url)) == ([], "")


def test_a_standby_that_lags_is_no_loss_where_it_is_only_read(rolled_back, monkeypatch):
    url = rolled_back.url
    function = (
        "CREATE FUNCTION public.pg_is_in_recovery() RETURNS boolean LANGUAGE sql AS 'SELECT true'"
    )
    rolled_back.psql("runs", function, "ALTER DATABASE runs SET search_path = public, pg_catalog")
    assert asyncio.run(_list(url, read_only=True)) == ["run"]


def test_a_command_that_ended_well_is_remembered_and_gives_no_alarm(state):
    url = server.emptied_database()
    for number in range(3):

        async def use(number: int = number) -> None:
            journal = PostgresJournal(url)
            await journal.create_run(spec(f"run {number}"), make_tasks("a"))
            await journal.close()

        asyncio.run(use())
    identity = identity_of(url)
    assert len(acknowledged_commits(identity)) <= 3
    assert 1 in acknowledged_commits(identity).values()
    assert len(asyncio.run(_list(url, read_only=True))) == 3


def test_a_command_that_commits_while_another_one_checks_gives_no_alarm(state, monkeypatch):
    url = server.emptied_database()
    asyncio.run(_list(url, read_only=False))

    def commit_and_read(identity: str) -> dict[str, int]:
        async def use() -> None:
            journal = PostgresJournal(url)
            await journal.create_run(spec("meanwhile"), make_tasks("a"))
            await journal.close()

        monkeypatch.setattr(schema, "acknowledged_commits", acknowledged_commits)
        thread = threading.Thread(target=asyncio.run, args=(use(),))
        thread.start()
        thread.join()
        return acknowledged_commits(identity)

    monkeypatch.setattr(schema, "acknowledged_commits", commit_and_read)
    assert asyncio.run(check_server(url)).findings == []


def test_the_notes_are_small_and_private(state):
    url = server.emptied_database()
    asyncio.run(_list(url, read_only=False))
    note = state / identity_of(url)
    assert note.stat().st_size == files.SLOTS * files.SLOT_BYTES
    assert note.stat().st_mode & 0o777 == 0o600
    assert state.stat().st_mode & 0o777 == 0o700


def test_a_note_that_is_older_than_a_writers_row_says_nothing(state, monkeypatch):
    url = server.emptied_database()

    async def use() -> None:
        journal = PostgresJournal(url)
        _, _, claims = await ready(journal, "a", samples=1)
        await journal.append(claims[0].open[0], values(1))
        await journal.close()

    asyncio.run(use())
    identity = identity_of(url)
    assert acknowledged_commits(identity)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 60 * 86400)
    assert acknowledged_commits(identity) == {}


@pytest.mark.parametrize("kind", ["link", "file", "nowhere"])
def test_a_folder_that_is_not_ours_is_left_alone(state, tmp_path, monkeypatch, kind):
    victim = tmp_path / "victim"
    victim.mkdir()
    state.parent.mkdir(parents=True)
    if kind == "link":
        state.symlink_to(victim)
        if os.geteuid() != 0:
            pytest.skip("only root can give a link away")
        os.lchown(state, 1234, 1234)  # One's own link is followed.
    elif kind == "file":
        state.write_text("mine")
    else:
        monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    assert asyncio.run(_list(server.emptied_database(), read_only=False)) == []
    assert list(victim.iterdir()) == []
