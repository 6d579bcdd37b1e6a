"""Bad input gets one clear line, a documented exit code, and touches nothing that is recorded."""

import os
import shutil
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from holdfast.cli.setup.errors import guarded
from holdfast.records import errors
from holdfast.records.exit_codes import Exit
from holdfast.testing import FakeEngine
from holdfast.training.run.folder import FolderInUse, OtherTraining
from holdfast.weights.engine_lock import EngineInUse
from support.cli.shell import CommandLine, end, start

GOOD = "async def solve(t):\n    pass\n"


@pytest.fixture(scope="module")
def template(module_engine, tmp_path_factory):
    """A finished run, made once."""
    shell = CommandLine(tmp_path_factory.mktemp("template"), module_engine)
    shell.finished_run()
    return shell


@pytest.fixture
def recorded(shell, template):
    """A folder in whose journal a run is recorded; it must look the same afterwards."""
    shutil.copy(template.journal, shell.journal)
    before = shell.recorded()
    yield shell
    assert shell.recorded() == before
    shell.engine.reset()


def refused(shell, *extra, code=Exit.USAGE, **options) -> str:
    """What is said about a run that is not begun, with and without a journal of its own."""
    done = shell.run(*extra, **options)
    assert done.code == code, done.err
    assert done.out == ""
    assert done.line.startswith("holdfast: ")
    return done.line


def refused_anew(shell, *extra, code=Exit.USAGE, **options) -> str:
    """The same, and no journal comes into being."""
    options.setdefault("journal", "fresh.db")
    line = refused(shell, *extra, code=code, **options)
    assert not (shell.place / "fresh.db").exists()
    assert shell.engine.stats().requests == 0
    return line


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.JournalFull("disk"), Exit.STOPPED),
        (errors.JournalUnreachable("server"), Exit.STOPPED),
        (errors.LeaseLost("worker"), Exit.STOPPED),
        (errors.EndpointDown("engine"), Exit.STOPPED),
        (errors.JournalCorrupt("record"), Exit.CORRUPT),
        (errors.JournalDamaged("commits"), Exit.CORRUPT),
        (errors.JournalNewer("schema"), Exit.USAGE),
        (errors.NotAJournal("file"), Exit.USAGE),
        (errors.PolicyRefused("model"), Exit.USAGE),
        (errors.NotTrainable("sample"), Exit.USAGE),
        (errors.UsageError("option"), Exit.USAGE),
        (errors.RunHeld("run"), Exit.HELD),
        (EngineInUse("engine"), Exit.HELD),
        (FolderInUse("folder"), Exit.HELD),
        (OtherTraining("folder"), Exit.CHANGED),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_each_error_has_its_exit_code_and_one_line(error, code, capsys):
    def fail():
        raise error

    assert guarded(fail) == code
    assert capsys.readouterr().err.count("\n") == 1


def test_what_is_refused_before_a_journal_is_there_is_refused_beside_one_too(recorded):
    recorded.write("tasks.jsonl", "[]\n")
    assert "tasks.jsonl:1" in refused(recorded)
    assert "does not serve" in refused(recorded, tasks=recorded.tasks("a"), model="gpt-0")


# --- tasks


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"prompt": "a"}\n{"prompt": \n', "tasks.jsonl:2: not JSON"),
        ('{"prompt": "a"}\n\n[1]\n', "tasks.jsonl:3: wants a JSON object, found list"),
        ('{"id": "a"}\n', "tasks.jsonl:1: needs 'messages' (a list; empty"),
        ('{"messages": [{"role": "king"}]}\n', "tasks.jsonl:1: messages[0]: role is 'king'"),
        ('{"prompt": "a", "messages": []}\n', "give 'messages' or 'prompt', not both"),
        ('{"id": 1.5, "prompt": "a"}\n', "tasks.jsonl:1: id is 1.5; it wants a text or a whole"),
        ('{"id": "", "prompt": "a"}\n', "tasks.jsonl:1: an id has 1 to 200 characters"),
        ('{"id": "x", "prompt": "a"}\n' * 2, "task id 'x' is used 2 times"),
        ("\n \n", "has no tasks"),
    ],
)
def test_a_bad_task_file_is_refused_with_its_line_and_the_reason(recorded, content, message):
    recorded.write("tasks.jsonl", content)
    assert message in refused_anew(recorded)


def test_a_task_file_that_is_not_there_or_an_empty_folder_is_refused(recorded, tmp_path):
    assert "task file none.jsonl does not exist" in refused_anew(recorded, tasks="none.jsonl")
    empty = tmp_path / "an_empty_folder"
    empty.mkdir()
    assert "holds no data set" in refused_anew(recorded, tasks=str(empty))


# --- rollouts and scorers


@pytest.mark.parametrize(
    ("source", "frames", "message"),
    [
        ("x = (\n", ["SyntaxError: '(' was never closed"], "SyntaxError"),
        ("def boom():\n    1 / 0\nboom()\n", ["in boom", "ZeroDivisionError"], "division by zero"),
        ("import sys\nsys.exit(0)\n", ["sys.exit(0)", "SystemExit: 0"], "SystemExit: 0"),
        ("import nowhere_to_be_found\n", ["ModuleNotFoundError"], "nowhere_to_be_found"),
        (
            "try:\n    {}['a']\nexcept KeyError as e:\n    raise ValueError('2\\nlines') from e\n",
            ["KeyError: 'a'", "direct cause", "ValueError: 2\nlines"],
            "ValueError: 2 lines",
        ),
    ],
)
def test_a_rollout_file_that_does_not_import_shows_the_users_traceback_alone(
    recorded, source, frames, message
):
    recorded.write("broken.py", source)
    done = recorded.run(rollout="broken.py")
    assert done.code == Exit.USAGE
    *trace, line = done.err.splitlines()
    assert line.startswith("holdfast: broken.py does not import: ")
    assert message in line
    for frame in (*frames, "broken.py"):
        assert frame in "\n".join(trace)
    assert "holdfast/" not in "\n".join(trace), "our frames are no business of the user's"
    assert "importlib" not in "\n".join(trace)


@pytest.mark.parametrize(
    ("source", "rollout", "message"),
    [
        (GOOD, "none.py", "none.py does not exist"),
        (GOOD, ".", ". is not a file"),
        (GOOD, "mine.py:other", "mine.py has no 'other'; its rollouts: solve"),
        (GOOD + "async def second(t):\n    pass\n", "mine.py", "2 rollouts (solve, second)"),
        ("from agent import solve\n", "mine.py", "solve is imported from elsewhere: name it as"),
        ("x = 3\n", "mine.py", "mine.py has no rollout: it wants an async function"),
        ("def solve(t):\n    pass\n", "mine.py:solve", "is not a rollout: it wants an async"),
        ("async def solve(t, u):\n    pass\n", "mine.py:solve", "it takes (t, u)"),
        ("async def solve(t, u):\n    pass\n", "mine.py", "; solve(t, u) takes more"),
    ],
)
def test_a_file_without_the_rollout_is_refused_with_what_it_has(recorded, source, rollout, message):
    recorded.write("mine.py", source)
    assert message in refused_anew(recorded, rollout=rollout)


def test_a_text_file_is_no_rollout(recorded):
    assert "tasks.jsonl is not a Python file" in refused_anew(recorded, rollout="tasks.jsonl")


def test_a_processor_that_cannot_be_made_shows_the_users_traceback(recorded):
    recorded.write(
        "mine.py",
        "import holdfast\nclass Mine(holdfast.RolloutProcessor):\n"
        "    def __init__(self):\n        raise OSError('no browser')\n",
    )
    done = recorded.run(rollout="mine.py")
    assert done.code == Exit.USAGE
    assert "in __init__" in done.err
    assert "the rollout cannot be made: OSError: no browser" in done.err.splitlines()[-1]
    assert "holdfast/" not in done.err


def test_a_processor_whose_setup_fails_is_not_called_our_bug(shell):
    shell.write(
        "mine.py",
        "import holdfast\nclass Mine(holdfast.RolloutProcessor):\n"
        "    async def setup(self):\n        raise OSError('no browser')\n",
    )
    done = shell.run("--quiet", rollout="mine.py")
    assert done.code == Exit.STOPPED
    assert done.err.splitlines()[-1] == (
        "holdfast: the rollout's own code failed: OSError: no browser"
    )
    assert "asyncio" not in done.err


@pytest.mark.parametrize(
    ("scorer", "message"),
    [
        ("none", "agent.py has no scorer 'none'"),
        ("none.py:score", "none.py does not exist"),
        ("other.py", "other.py has no scorer 'score'"),
        ("other.py:number", "other.py:number is not a scorer"),
        ("other.py:two", "other.py:two is not a scorer"),
    ],
)
def test_a_scorer_that_is_none_is_refused(recorded, scorer, message):
    recorded.write("other.py", "number = 3\ndef two(a, b):\n    return 0\n")
    assert message in refused_anew(recorded, scorer=scorer)


def test_a_rollout_file_may_have_the_name_of_a_module_of_the_library(shell):
    (shell.place / "mine").mkdir()
    shell.write("mine/json.py", GOOD)
    shell.finished_run(rollout="mine/json.py")


# --- the engine


def test_a_model_that_is_not_served_is_refused_with_those_that_are(recorded):
    refused = refused_anew(recorded, model="gpt-0").rstrip()
    assert refused.endswith("does not serve model 'gpt-0'; it serves: fake")


def test_an_endpoint_that_is_down_at_the_start_is_told(recorded):
    with closing(socket.socket()) as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]  # It is kept, so that nobody else comes to listen at it.
        line = refused_anew(recorded, policy=f"http://127.0.0.1:{port}", code=Exit.STOPPED)
    assert "does not answer" in line
    assert "start it, or correct the address" in line


def test_an_endpoint_that_is_no_inference_engine_is_told_in_one_line(recorded):
    server = subprocess.Popen(
        [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=recorded.place,
    )
    try:
        port = server.stdout.readline().split(" port ")[1].split()[0]
        assert "answered 404" in refused_anew(recorded, policy=f"http://127.0.0.1:{port}")
    finally:
        server.kill()
        server.communicate()


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "http://", "http://[::1"])
def test_an_address_that_is_none_is_refused(recorded, url):
    assert "--policy" in refused_anew(recorded, policy=url)


def test_a_key_that_is_named_but_not_there_is_refused(recorded):
    line = refused_anew(recorded, "--api-key-env", "NO_SUCH_KEY")
    assert "the environment has no NO_SUCH_KEY" in line


# --- numbers


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--samples", "0", "argument --samples: must be 1 or more, not 0"),
        ("--samples", "many", "argument --samples: wants a whole number, not 'many'"),
        ("--concurrency", "0", "argument --concurrency: must be 1 or more"),
        ("--max-retry", "-1", "argument --max-retry: must be 0 or more"),
        ("--temperature", "-0.1", "argument --temperature: must be 0 or more"),
        ("--temperature", "nan", "argument --temperature: must be a finite number, 0 or more"),
        ("--temperature", "hot", "argument --temperature: wants a number, not 'hot'"),
        ("--top-p", "1.5", "argument --top-p: must be above 0 and at most 1, not 1.5"),
        ("--max-tokens", "0", "argument --max-tokens: must be 1 or more"),
        ("--seed", "1" * 30, "argument --seed: must fit in 64 bits"),
        ("--lease", "0", "argument --lease: must be"),
        ("--call-tries", "0", "argument --call-tries: must be 1 or more"),
        ("--group-shortfall", "keep", "argument --group-shortfall: invalid choice"),
        ("--sample", "2", "unrecognized arguments: --sample 2"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_by_its_name(recorded, option, value, message):
    assert message in refused_anew(recorded, option, value)


def test_new_and_accept_changes_exclude_each_other(recorded):
    assert "not allowed with" in refused_anew(recorded, "--new", "--accept-changes")


def test_a_command_without_what_it_needs_says_what(shell):
    done = shell.holdfast("run", "agent.py")
    assert done.code == Exit.USAGE
    assert "required: --tasks;" in done.line
    assert "see `holdfast run --help`" in done.line


@pytest.mark.parametrize("name", ["a/b", "", "x" * 201])
def test_a_run_name_that_cannot_be_one_is_refused(recorded, name):
    assert "a run's name has 1 to 200 characters and no '/'" in refused_anew(recorded, run=name)


# --- the journal


def test_a_journal_of_a_newer_version_is_refused_and_not_touched(shell, template):
    shutil.copy(template.journal, shell.journal)
    with closing(sqlite3.connect(shell.journal)) as connection:
        connection.execute("PRAGMA user_version = 99")
    before = shell.journal.read_bytes()
    assert "version 99, written by a newer Holdfast" in refused(shell)
    for arguments in (("runs",), ("show", "r"), ("journal", "check", shell.journal)):
        done = shell.holdfast(*arguments)
        assert done.code == Exit.USAGE
        assert "newer Holdfast" in done.line
    assert shell.journal.read_bytes() == before


def test_a_file_that_is_no_journal_is_refused_and_not_touched(shell):
    text = shell.write("notes.txt", "these are notes, and no journal\n" * 40)
    other = shell.place / "other.db"
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE mine(x)")
    for path in (text, other):
        before, modified = path.read_bytes(), path.stat().st_mtime_ns
        assert "no Holdfast journal" in refused(shell, journal=path).replace("not a", "no")
        for arguments in (
            ("show", "r", "--journal", path),
            ("export", "r", "--what", "samples", "--out", "out", "--journal", path),
            ("journal", "check", path, "--repair"),
        ):
            done = shell.holdfast(*arguments)
            assert done.code == Exit.USAGE, arguments
            assert "was not touched" in done.line
        assert (path.read_bytes(), path.stat().st_mtime_ns) == (before, modified)
    assert not (shell.place / "out").exists()


@pytest.mark.parametrize("path", ["tasks.jsonl/j.db", "/proc/j.db"])
def test_a_journal_that_cannot_be_written_is_told(recorded, path):
    assert f"journal {path} cannot be written" in refused(recorded, journal=path)


def test_a_journal_in_a_folder_that_is_not_there_is_refused(recorded):
    line = refused(recorded, journal="none/deep/j.db")
    assert f"there is no folder {recorded.place / 'none' / 'deep'}; make it first" in line
    assert not (recorded.place / "none").exists()


def test_a_journal_that_is_a_folder_is_refused(recorded):
    assert "journal . is a folder; name a file" in refused(recorded, journal=".")


def test_a_journal_that_is_not_there_is_not_made_by_reading(shell):
    for arguments in (("runs",), ("show", "r"), ("export", "r", "--what", "samples", "--out", "o")):
        done = shell.holdfast(*arguments, "--journal", "none.db")
        assert done.code == Exit.USAGE
        assert "there is no journal at none.db" in done.line
    assert shell.holdfast("journal", "check", "none.db").code == Exit.USAGE
    assert not (shell.place / "none.db").exists()


def test_a_run_that_a_live_process_holds_is_refused_whatever_is_asked_of_it(tmp_path):
    with FakeEngine(delay=600) as engine:
        shell = CommandLine(tmp_path, engine)
        first = start(*shell.arguments("--quiet", "--grace", 0), cwd=shell.place)
        try:
            while not engine.stats().requests:
                assert first.poll() is None
            before = shell.recorded()
            line = refused(shell, code=Exit.HELD)
            assert f"process {first.pid}" in line
            assert "--join" in line
            assert f"process {first.pid}" in refused(
                shell, "--accept-changes", "--samples", 5, code=Exit.HELD
            )
            done = shell.holdfast("journal", "check", shell.journal, "--repair")
            assert done.code == Exit.HELD
            assert shell.recorded() == before, "a change was recorded under a live worker"
        finally:
            first.terminate()
        assert end(first).code == Exit.TERMINATED


# --- show and export


def test_an_unknown_run_or_trajectory_is_told_with_those_there_are(recorded):
    for arguments in (("show", "none"), ("export", "none", "--what", "samples", "--out", "out")):
        done = recorded.holdfast(*arguments)
        assert done.code == Exit.USAGE
        assert "no run 'none' in the journal; it has: r" in done.line
    done = recorded.holdfast("show", "r", "none/0")
    assert done.code == Exit.USAGE
    assert "no trajectory 'none/0'; it has sum/0, long-one/0" in done.line
    assert not (recorded.place / "out").exists()


@pytest.mark.parametrize("out", ["none/out", ".", "", "pipe", "/proc/out"])
def test_an_export_to_a_place_that_cannot_be_written_is_told(recorded, out):
    os.mkfifo(recorded.place / "pipe")  # A device, for instance, is not replaced.
    done = recorded.holdfast("export", "r", "--what", "samples", "--out", out)
    assert done.code == Exit.USAGE
    assert "cannot be written" in done.line
    assert (recorded.place / "pipe").is_fifo()


def test_fixed_groups_go_with_samples_only(recorded):
    for what in ("trajectories", "failures"):
        done = recorded.holdfast("export", "r", "--what", what, "--out", "o", "--fixed-groups")
        assert done.code == Exit.USAGE
        assert "--fixed-groups goes with --what samples" in done.line
    assert not (recorded.place / "o").exists()


def test_parquet_without_pyarrow_says_how_to_get_it(recorded):
    recorded.write("sitecustomize.py", "import sys\nsys.modules['pyarrow'] = None\n")
    done = recorded.holdfast(
        "export", "r", "--what", "samples", "--format", "parquet", "--out", "o",
        env={"PYTHONPATH": str(recorded.place)},
    )  # fmt: skip
    assert done.code == Exit.USAGE
    assert "pip install '.[parquet]'" in done.line
    assert not (recorded.place / "o").exists()


def test_a_reader_that_goes_away_is_no_error(recorded):
    command = [sys.executable, "-m", "holdfast", "show", "r", "sum/0", "--json"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=recorded.place
    )
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(60) == 0


def test_escape_sequences_in_an_error_are_shown_and_not_obeyed(capsys) -> None:
    def fail():
        raise errors.PolicyRefused("the engine answered 401: \x1b[2J\x1b]0;owned\x07 \u202e\x9b31m")

    guarded(fail)
    line = capsys.readouterr().err
    assert line.endswith("\n")
    assert line[:-1].isprintable()
    assert "\\x1b[2J" in line
