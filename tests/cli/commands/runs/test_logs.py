"""`holdfast logs` finds what the processes of a run have written."""

import json

import pytest

from holdfast import log_files
from holdfast.testing import FakeEngine
from support.cli.shell import CommandLine

SCORER = """
def loud(view):
    print("judging", view.key.task)
    return 1.0
"""


@pytest.fixture
def shell(tmp_path):
    with FakeEngine() as engine:
        yield CommandLine(tmp_path, engine)


def test_each_scorer_has_a_file_and_the_export_is_that_of_one_process(shell, tmp_path):
    shell.finished_run()
    undisturbed = shell.export("rows")
    shell.journal.unlink()
    (shell.place / "holdfast.db-witness").unlink()
    env = {log_files.LOGS: str(tmp_path / "logs")}
    done = shell.run("--score-workers", 2, env=env)
    assert done.code == 0, done.err
    assert shell.export("rows") == undisturbed
    data = json.loads(shell.holdfast("logs", "r", "--json", env=env).out)
    assert len(data["files"]) == 2


def test_what_scorers_print_is_in_their_files(shell, tmp_path):
    shell.write("judge.py", SCORER)
    env = {log_files.LOGS: str(tmp_path / "logs")}
    done = shell.run("--score-workers", 1, scorer="judge.py:loud", env=env)
    assert done.code == 0, done.err
    assert "judging" not in done.out
    shown = shell.holdfast("logs", "r", env=env)
    assert "judging sum" in shown.out


def test_a_run_that_is_not_there_is_said_so(shell, tmp_path):
    shell.finished_run()
    env = {log_files.LOGS: str(tmp_path / "none")}
    assert "there is no run 'nosuch'" in shell.holdfast("logs", "nosuch", env=env).line
    assert "has no logs on this machine" in shell.holdfast("logs", "r", env=env).line


def test_without_logs_it_says_what_logs_where(shell, tmp_path):
    done = shell.holdfast("logs", "r", env={log_files.LOGS: str(tmp_path / "none")})
    assert done.code == 2
    assert "has no logs on this machine" in done.line
    assert str(tmp_path / "none") in done.line
