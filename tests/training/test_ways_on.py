"""What is advised where a training cannot go on: words that work as they are printed."""

import asyncio
from pathlib import Path

import pytest

from holdfast.journal.sqlite.journal import MemoryJournal, SqliteJournal
from holdfast.training.run.batches import command_for, train_on


def test_a_command_names_the_journal_that_it_needs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def named(path, *arguments):
        async def ask():
            async with SqliteJournal(Path(path)) as journal:
                return command_for(*arguments, journal)

        return asyncio.run(ask())

    assert command_for("report", "first", MemoryJournal()) == "`holdfast report first`"
    assert named("holdfast.db", "report", "first") == "`holdfast report first`"
    assert named("my own.db", "rm", "a b") == "`holdfast rm 'a b' --journal 'my own.db'`"


def test_a_server_is_named_without_its_password():
    pytest.importorskip("psycopg")
    from holdfast.journal.postgres.journal import PostgresJournal

    journal = PostgresJournal("postgresql://me:secret@db/holdfast")
    command = command_for("report", "first", journal)
    assert command.startswith("`holdfast report first --journal postgresql://me@db/holdfast")
    assert "secret" not in command


def test_to_train_on_keeps_the_learning_rate():
    """By default, it depends on which model is given."""
    assert train_on(Path("my out/weights/step-1"), 3e-4) == (
        "start a new training from its model (--model 'my out/weights/step-1' "
        "--learning-rate 0.0003, another --run and --out)"
    )


def test_a_refused_learning_rate_is_named_with_the_one_before():
    text = train_on(Path("w"), 3e-4, wanted_rate=1e-3)
    assert "--learning-rate 0.001, or 0.0003 as before, another --run" in text
    assert train_on(Path("w"), 3e-4, wanted_rate=3e-4) == train_on(Path("w"), 3e-4)
