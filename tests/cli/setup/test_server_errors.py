"""Each command ends with the same exit code for the same trouble of a server."""

import signal

import pytest

from holdfast.records.exit_codes import Exit
from holdfast.testing import FakeEngine
from support.cli.shell import CommandLine, Done
from support.journal import postgres_server as server
from support.journal.own_server import free_port, own_server

pytestmark = pytest.mark.skipif(not server.is_available(), reason="needs a PostgreSQL server")

COMMANDS: tuple[tuple[str, ...], ...] = (
    ("runs",),
    ("show", "r"),
    ("show", "r/sum/0"),
    ("export", "r", "--what", "samples", "--out", "x.jsonl"),
    ("report", "r"),
    ("compare", "r", "r"),
    ("tag", "r", "good"),
    ("rename", "r", "s"),
    ("rm", "r", "--yes"),
    ("prune", "--older-than", "1d", "--yes"),
    ("resume", "r"),
    ("journal", "ledger", "r"),
    ("journal", "compact", "URL"),
    ("journal", "check", "URL"),
    ("journal", "copy", "URL", "x.db"),
    ("gateway", "--run", "g", "--tasks", "tasks.jsonl", "--policy", "ENGINE"),
    ("run", "agent.py", "--run", "r", "--tasks", "tasks.jsonl", "--policy", "ENGINE"),
    ("run", "agent.py", "--run", "n", "--new", "--tasks", "tasks.jsonl", "--policy", "ENGINE"),
)


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    with FakeEngine(mean_length=10) as engine:
        yield CommandLine(tmp_path_factory.mktemp("commands"), engine)


@pytest.fixture(scope="module")
def lossy(shell):
    """A journal that is known to have lost commits."""
    url = server.new_database()
    shell.finished_run(journal=url)
    server.run_sql(url, "INSERT INTO holdfast.losses VALUES (now(), 'somebody', 3, 1)")
    yield url
    server.drop_database(url)


def tried(shell: CommandLine, arguments: tuple[str, ...], url: str) -> Done:
    environment = {"URL": url, "ENGINE": shell.engine.url}
    on_journal = ("--journal", url) if "URL" not in arguments else ()
    return shell.holdfast(*(environment.get(word, word) for word in arguments), *on_journal)


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_lost_commits_end_every_command_with_6(shell, lossy, arguments):
    before = shell.engine.stats().requests
    done = tried(shell, arguments, lossy)
    assert done.code == Exit.CORRUPT, done.err
    assert "has lost 2 commits" in done.out + done.err
    assert shell.engine.stats().requests == before


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_server_that_is_down_ends_every_command_with_5(shell, arguments):
    done = tried(shell, arguments, f"postgresql://me@127.0.0.1:{free_port()}/x?connect_timeout=1")
    assert done.code == Exit.STOPPED, done.err
    assert "cannot be reached" in done.line
    assert "the same command goes on" in done.line


def test_a_run_that_is_started_after_a_failover_ends_with_6_and_calls_nothing(shell):
    """The commands before it have ended: only this machine remembers what they were told."""
    with own_server() as own:
        shell.finished_run(journal=own.url)
        own.kill(signal.SIGINT)
        own.copy(own.folder / "older")
        own.start()
        shell.finished_run("--samples", 2, journal=own.url, run="later")
        own.kill(signal.SIGINT)
        own.put_back(own.folder / "older")
        own.start()
        before = shell.engine.stats().requests
        done = shell.run("--samples", 2, journal=own.url, run="later")
        assert done.code == Exit.CORRUPT, done.err
        assert "that it had acknowledged" in done.line
        assert shell.engine.stats().requests == before
        assert shell.holdfast("journal", "check", own.url, "--repair").code == Exit.OK
        shell.finished_run("--samples", 2, journal=own.url, run="later")
