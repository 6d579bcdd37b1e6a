"""What is refused at the door of a server, each in one line, and how a journal begins."""

import asyncio
import logging
from getpass import getuser

import pytest

from holdfast.journal.damage.check_server import check_server
from holdfast.journal.postgres import schema
from holdfast.journal.postgres.address import address_of
from holdfast.journal.postgres.connection import quoted, role_of
from holdfast.journal.postgres.journal import PostgresJournal
from holdfast.journal.sql.journal import Journal
from holdfast.records.errors import HoldfastError, JournalError, JournalNewer, NotAJournal
from support.journal import postgres_server as server
from support.journal.own_server import free_port, own_server
from support.records import ready, values

pytestmark = pytest.mark.skipif(not server.is_available(), reason="needs a PostgreSQL server")


@pytest.fixture
def empty():
    url = server.new_database(ready=False)
    yield url
    server.drop_database(url)


def refusal(url: str, kind: type[HoldfastError] = JournalError, *, read_only: bool = False) -> str:
    """The line by which the journal is refused."""

    async def use() -> None:
        journal: Journal = PostgresJournal(url, read_only=read_only)
        try:
            await (journal.runs() if read_only else journal.put_blob(b"x"))
        finally:
            await journal.close()

    with pytest.raises(kind) as caught:
        asyncio.run(use())
    line = str(caught.value)
    assert "\n" not in line
    assert server.GUARDED[1] not in line
    return line


def works(url: str) -> None:
    async def use() -> None:
        journal = PostgresJournal(url)
        _, _, claims = await ready(journal, "a", samples=1)
        await journal.append(claims[0].open[0], values(1))
        await journal.close()

    asyncio.run(use())


def test_a_journal_begins_with_the_least_rights(empty):
    works(empty)


def test_two_that_begin_it_at_once_begin_one(empty):
    async def use() -> list[bytes]:
        journals = [PostgresJournal(empty) for _ in range(5)]
        results = await asyncio.gather(*(journal.put_blob(b"x") for journal in journals))
        await asyncio.gather(*(journal.close() for journal in journals))
        return results

    assert len(set(asyncio.run(use()))) == 1
    (row,) = server.run_sql(empty, "SELECT count(*) FROM holdfast.meta WHERE name = 'version'")
    assert row[0] == 1


def test_reading_begins_nothing(empty):
    assert "is empty" in refusal(empty, read_only=True)
    assert server.run_sql(empty, "SELECT to_regclass('holdfast.meta')")[0][0] is None


def test_a_newer_journal_is_refused_and_not_touched(empty):
    works(empty)
    server.run_sql(empty, "UPDATE holdfast.meta SET value = '99' WHERE name = 'version'")
    for read_only in (False, True):
        line = refusal(empty, JournalNewer, read_only=read_only)
        assert "has version 99" in line
        assert "Upgrade Holdfast" in line


def test_a_schema_of_somebody_else_is_refused(empty):
    server.run_sql(empty, "CREATE TABLE holdfast.customers(id int)")
    assert "holds something else" in refusal(empty, NotAJournal)


def test_a_missing_right_is_named_with_the_line_that_grants_it():
    url = server.new_database()
    try:
        guarded = server.url_of(
            url.split("?")[0].rpartition("/")[2], user="guarded", password="pass%3Aword%2F%251"
        )
        line = refusal(guarded)
        assert "permission denied for schema holdfast" in line
        assert "GRANT USAGE ON SCHEMA holdfast TO " in line
        assert "this_user" not in line
        server.run_sql(url, "DROP SCHEMA holdfast CASCADE")
        line = refusal(guarded)
        assert "lacks the right CREATE" in line
        assert 'CREATE SCHEMA holdfast AUTHORIZATION "guarded"' in line
    finally:
        server.drop_database(url)


def test_a_wrong_password_and_a_missing_database_are_said_at_once():
    wrong = server.url_of("postgres", user="guarded", password="wr0ng")
    line = refusal(wrong)
    assert "does not let this user in" in line
    assert "wr0ng" not in line
    assert "no such database" in refusal(server.url_of("nowhere"))
    assert "`createdb nowhere`" in refusal(server.url_of("nowhere"))


def test_a_server_that_cannot_be_reached_is_tried_until_a_deadline():
    line = refusal(f"postgresql://me:s3cret@127.0.0.1:{free_port()}/x?connect_timeout=1")
    assert "cannot be reached" in line
    assert "tried for 1 s" in line
    assert "s3cret" not in line


@pytest.mark.parametrize(
    ("setting", "switch"),
    [
        ("fsync", "allow_fsync_off"),
        ("full_page_writes", "allow_fsync_off"),
    ],
)
def test_a_server_that_forgets_is_refused_unless_that_is_allowed_by_name(setting, switch, caplog):
    with own_server(**{setting: "off"}) as own:
        _check_forgetful(own.url, setting, switch, caplog)


def _check_forgetful(url: str, setting: str, switch: str, caplog) -> None:
    line = refusal(url)
    assert f"{setting} = off" in line
    assert f"{setting} = on" in line
    assert f"{switch}=yes" in line
    with caplog.at_level(logging.WARNING, "holdfast.journal"):
        works(f"{url}&{switch}=yes")
    assert f"{setting} = off" in caplog.text


def with_default(url: str, setting: str, value: str) -> None:
    """Every new connection to that database has it."""
    name = url.split("?", maxsplit=1)[0].rpartition("/")[2]
    server.run_sql("postgres", f"ALTER DATABASE {name} SET {setting} = '{value}'")


async def _commit_setting(url: str) -> str:
    """As it is where a batch of appends is written."""
    journal = PostgresJournal(url)
    try:
        (value,) = await journal.transact(
            lambda store: store.row("SELECT current_setting('synchronous_commit')")
        )
        return value
    finally:
        await journal.close()


@pytest.mark.parametrize("value", ["off", "local", "remote_write"])
def test_commits_are_synchronous_whatever_the_role_has_and_a_line_says_so(empty, value, caplog):
    with_default(empty, "synchronous_commit", value)
    with caplog.at_level(logging.WARNING, "holdfast.journal"):
        assert asyncio.run(_commit_setting(empty)) == "on"
    (line,) = [line for line in caplog.messages if "synchronous_commit" in line]
    assert f"the server has {value}" in line
    assert 'ALTER ROLE "trainer" SET synchronous_commit = on' in line


def test_commits_that_may_be_lost_are_allowed_by_name(empty, caplog):
    with_default(empty, "synchronous_commit", "off")
    with caplog.at_level(logging.WARNING, "holdfast.journal"):
        assert asyncio.run(_commit_setting(f"{empty}&allow_synchronous_commit_off=yes")) == "off"
    assert "may be lost" in caplog.text


def test_a_stronger_commit_stays(empty):
    with_default(empty, "synchronous_commit", "remote_apply")
    assert asyncio.run(_commit_setting(empty)) == "remote_apply"


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("default_transaction_isolation", "repeatable read"),
        ("default_transaction_isolation", "serializable"),
        ("default_transaction_read_only", "on"),
        ("client_encoding", "SQL_ASCII"),
        ("client_encoding", "LATIN1"),
        ("array_nulls", "off"),
    ],
)
def test_drivers_begin_one_journal_at_once_whatever_the_role_has(empty, setting, value):
    with_default(empty, setting, value)

    async def use() -> list[object]:
        journals = [PostgresJournal(empty) for _ in range(4)]
        outcomes = await asyncio.gather(
            *(journal.put_blob(b"x") for journal in journals), return_exceptions=True
        )
        await asyncio.gather(*(journal.close() for journal in journals))
        return outcomes

    assert len(set(asyncio.run(use()))) == 1
    works(empty)
    assert asyncio.run(check_server(empty)).findings == []


def test_an_older_journal_is_brought_forward_by_who_writes(empty, monkeypatch):
    works(empty)
    following = {schema.VERSION + 1: ("CREATE TABLE notes(text text)",)}
    monkeypatch.setattr(schema, "_MIGRATIONS", schema._MIGRATIONS | following)
    monkeypatch.setattr(schema, "VERSION", schema.VERSION + 1)

    async def use(*, read_only: bool) -> None:
        journal = PostgresJournal(empty, read_only=read_only)
        try:
            assert await journal.find_run("run") is not None
        finally:
            await journal.close()

    with pytest.raises(JournalError, match="a command that writes, such as holdfast run, brings"):
        asyncio.run(use(read_only=True))
    asyncio.run(use(read_only=False))
    assert server.run_sql(empty, "SELECT * FROM holdfast.notes") == []


def test_advice_names_the_role_that_the_driver_takes(monkeypatch):
    monkeypatch.setenv("PGUSER", 'odd "one"')
    assert quoted(role_of(address_of("postgresql://db/x"))) == '"odd ""one"""'
    assert role_of(address_of("postgresql://my%20role@db/x?user=other")) == "my role"
    assert role_of(address_of("postgresql://db/x?user=other")) == "other"
    monkeypatch.delenv("PGUSER")
    assert role_of(address_of("postgresql://db/x")) == getuser()


def test_a_migration_that_dies_leaves_nothing(empty, monkeypatch):
    monkeypatch.setitem(schema._MIGRATIONS, 1, (*schema._MIGRATIONS[1], "SELECT 1 / 0"))
    assert "division by zero" in refusal(empty)
    monkeypatch.undo()
    works(empty)
