"""Log files: one folder per run and journal, and no password in any name."""

import os

import pytest

from holdfast import log_files


def test_runs_of_one_name_in_two_journals_have_two_folders(tmp_path):
    env = {log_files.LOGS: str(tmp_path)}
    logs = log_files.logs_of("a/b", "one.db", environment=env)
    other = log_files.logs_of("a/b", "two.db", environment=env)
    assert logs.parent == other.parent == tmp_path
    assert logs != other


@pytest.mark.parametrize(
    "journal",
    [
        "postgresql://me:secret@db/x",
        "postgresql://me:se/cret@secret@db/x",
        "postgresql://me@db/x?password=secret",
        "postgresql://me@db/x?password=s@cret",
    ],
)
def test_a_password_changes_nothing_and_is_nowhere(tmp_path, journal):
    env = {log_files.LOGS: str(tmp_path)}
    with_password = log_files.logs_of("r", journal, environment=env)
    assert with_password == log_files.logs_of("r", "postgresql://me@db/x", environment=env)
    assert log_files.journal_name(journal) == "postgresql://me@db/x"


def test_files_are_new_and_belong_to_the_user(tmp_path):
    first, other = (log_files.new_log(tmp_path / "r", "scorer") for _ in range(2))
    assert first != other
    log_files.note_elsewhere(tmp_path / "r", host="h", path="/x", role="worker")
    for path in (first, tmp_path / "r" / log_files.INDEX, tmp_path / "r"):
        assert os.stat(path).st_mode & 0o077 == 0


def test_an_index_outlives_a_line_that_a_kill_has_cut(tmp_path):
    log_files.note_elsewhere(tmp_path, host="node-1", path="/logs/a", role="worker")
    with (tmp_path / log_files.INDEX).open("a") as file:
        file.write('{"host": "no')
    assert log_files.read_index(tmp_path) == [
        {"host": "node-1", "path": "/logs/a", "role": "worker"}
    ]


def test_the_tail_of_a_file(tmp_path):
    path = tmp_path / "log"
    path.write_text("".join(f"{n}\n" for n in range(10)))
    assert log_files.tail(path, 2) == "8\n9"
    assert log_files.tail(path, 0) == ""
