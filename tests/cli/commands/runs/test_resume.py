"""`holdfast resume`: a run goes on by its own command, wherever that is said."""

import json
import signal
import subprocess
import sys

import pytest

from holdfast.records.exit_codes import Exit
from support.cli.shell import CommandLine, end, start
from support.paths import TESTS


@pytest.fixture
def stopped(shell: CommandLine) -> CommandLine:
    """A run with a failure that another start mends."""
    shell.tasks("sum", "bug-one")
    done = shell.run("--max-failures", 1, "--max-retry", 0)
    assert "1 FAILED" in done.out, done.err
    return shell


def listed(shell: CommandLine, *arguments: object) -> dict:
    (row,) = json.loads(shell.holdfast("runs", "--json", *arguments).out)
    return row


def test_a_run_goes_on_by_its_name(stopped: CommandLine) -> None:
    done = stopped.holdfast("resume", "r", "--retry-failed", env={"MENDED": "1"})
    assert done.code == 0, done.err
    assert listed(stopped)["over"]
    assert "holdfast run agent.py --tasks tasks.jsonl" in done.err


def test_the_listing_says_how_to_go_on(shell: CommandLine, engine) -> None:
    shell.tasks(*(f"long-{number}" for number in range(20)))
    process = start(*shell.arguments("--concurrency", 1), cwd=shell.place)
    while not shell.journal.exists() or not json.loads(
        shell.holdfast("runs", "--json").out or "[]"
    ):
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    end(process)
    assert "to go on: holdfast resume r\n" in shell.holdfast("runs").out
    done = shell.holdfast("resume", "r")
    assert done.code == 0, done.err
    assert "to go on" not in shell.holdfast("runs").out


def test_it_works_from_another_folder(stopped: CommandLine, tmp_path_factory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    arguments = ("resume", "r", "--journal", stopped.journal, "--retry-failed")
    done = end(start(*arguments, cwd=elsewhere, env={"MENDED": "1"}))
    assert done.code == 0, done.err
    assert list(elsewhere.iterdir()) == []


def test_files_that_were_moved_are_found_by_folder(stopped: CommandLine, tmp_path_factory) -> None:
    moved = tmp_path_factory.mktemp("moved") / "project"
    stopped.place.rename(moved)
    stopped.place, stopped.journal = moved, moved / "holdfast.db"
    refused = stopped.holdfast("resume", "r")
    assert refused.code == Exit.USAGE
    assert "--folder" in refused.line
    done = stopped.holdfast("resume", "r", "--folder", ".", "--retry-failed", env={"MENDED": "1"})
    assert done.code == 0, done.err


def test_options_replace_the_recorded_ones_and_are_recorded(stopped: CommandLine) -> None:
    arguments = ("resume", "r", "--max-failures", 5, "--concurrency=2", "--retry-failed")
    assert stopped.holdfast(*arguments, env={"MENDED": "1"}).code == 0
    recorded = listed(stopped)["command"]["words"]
    assert recorded[:2] == ["run", "agent.py"]
    assert [word for word in recorded if word.startswith("--max-f")] == ["--max-failures"]
    assert "--concurrency=2" in recorded
    assert not {"--run", "--journal", "--retry-failed"} & set(recorded)


def test_another_sampling_is_refused_as_ever(stopped: CommandLine) -> None:
    assert stopped.holdfast("resume", "r", "--temperature", 0.5).code == Exit.CHANGED


def test_a_renamed_run_goes_on(stopped: CommandLine) -> None:
    assert stopped.holdfast("rename", "r", "other").code == 0
    done = stopped.holdfast("resume", "other", "--retry-failed", env={"MENDED": "1"})
    assert done.code == 0, done.err
    assert listed(stopped)["name"] == "other"


def test_print_says_the_command_and_does_nothing(stopped: CommandLine) -> None:
    before = stopped.recorded()
    done = stopped.holdfast("resume", "r", "--print")
    assert done.out.startswith(f"cd {stopped.place} && holdfast run agent.py")
    data = json.loads(stopped.holdfast("resume", "r", "--print", "--json").out)
    assert data["folder"] == str(stopped.place)
    assert data["words"][:3] == ["holdfast", "run", "agent.py"]
    assert "--json" not in data["words"]
    assert stopped.recorded() == before


def test_secrets_are_neither_recorded_nor_made_up(shell: CommandLine) -> None:
    url = shell.engine.url.replace("//", "//user:hunter22@")
    assert shell.run(policy=url).code == 0
    assert b"hunter22" not in shell.journal.read_bytes()
    refused = shell.holdfast("resume", "r")
    assert refused.code == Exit.USAGE
    assert "--policy" in refused.line
    assert "hunter22" not in refused.err
    assert shell.holdfast("resume", "r", "--policy", shell.engine.url).code == 0


def test_a_run_of_a_program_says_that_it_has_no_command(shell: CommandLine) -> None:
    shell.write(
        "program.py",
        "import asyncio, holdfast\n"
        "from holdfast.journal.sqlite.journal import SqliteJournal\n"
        "from support.records import make_tasks, spec\n"
        "async def main():\n"
        "    journal = SqliteJournal(__import__('pathlib').Path('holdfast.db'))\n"
        "    await journal.create_run(spec('r'), make_tasks('a'))\n"
        "    await journal.close()\n"
        "asyncio.run(main())\n",
    )
    subprocess.run(
        [sys.executable, "program.py"], cwd=shell.place, env={"PYTHONPATH": str(TESTS)}, check=True
    )
    refused = shell.holdfast("resume", "r")
    assert refused.code == Exit.USAGE
    assert "recorded command" in refused.line


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("resume", "nope"), "nope"),
        (("resume", "r", "--conc", 2), "--conc"),
        (("resume", "r", "--journal", "none.db"), "none.db"),
        (("resume", "r", "--folder", "/nonexist"), "--folder /nonexist is not a folder"),
    ],
)
def test_a_mistake_is_one_line(stopped: CommandLine, arguments, named) -> None:
    done = stopped.holdfast(*arguments)
    assert done.code == Exit.USAGE
    assert named in done.err.splitlines()[-1]
