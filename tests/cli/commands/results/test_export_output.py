"""Where output goes: onto a full disk, to standard output, over another journal."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from holdfast.records.exit_codes import Exit
from support.cli.shell import CommandLine

LONG_MESSAGE = """
async def solve(t):
    raise ValueError("too long: " + "x" * 5_000_000)
"""


@pytest.fixture(scope="module")
def ran(module_engine, tmp_path_factory):
    shell = CommandLine(tmp_path_factory.mktemp("output"), module_engine)
    shell.tasks("sum", "long-one", "bug")
    shell.finished_run("--samples", 2)
    return shell


def onto(file: str, shell: CommandLine, *arguments: object, stderr: str = "") -> tuple[int, str]:
    """The exit code and what was said, with standard output in `file`."""
    with open(file, "wb") as out, open(stderr or os.devnull, "wb") as err:
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", *map(str, arguments)],
            stdout=out,
            stderr=err if stderr else subprocess.PIPE,
            text=True,
            cwd=shell.place,
            check=False,
            timeout=120,
        )
    return done.returncode, done.stderr or ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("runs",),
        ("runs", "--json"),
        ("show", "r"),
        ("show", "r", "--json"),
        ("show", "r", "sum/0", "--json"),
        ("export", "r", "--what", "trajectories", "--out", "-"),
        ("export", "r", "--what", "samples", "--out", "s.jsonl"),
        ("journal", "check", "holdfast.db"),
    ],
    ids=lambda arguments: "-".join(arguments[:3]),
)
def test_a_disk_that_is_full_under_standard_output_is_told_in_a_line(ran, arguments):
    text = "standard output cannot be written: No space left on device; what is recorded is safe"
    assert onto("/dev/full", ran, *arguments) == (Exit.STOPPED, f"holdfast: {text}\n")


def test_a_report_that_does_not_fit_the_disk_is_told_and_the_run_is_kept(ran):
    code, text = onto("/dev/full", ran, *ran.arguments("--samples", 2, "--quiet"))
    assert code == Exit.STOPPED
    assert text.startswith("holdfast: standard output cannot be written: ")
    assert ran.finished_run("--samples", 2, "--quiet").err == ""


def test_nothing_is_said_where_nobody_can_be_told(ran):
    assert onto("/dev/full", ran, "runs", stderr="/dev/full") == (Exit.STOPPED, "")


def test_a_dash_stands_for_standard_output(ran):
    done = ran.holdfast("export", "r", "--what", "samples", "--out", "-")
    assert (done.code, done.err) == (Exit.OK, "")
    assert done.out.encode() == ran.export("samples")
    assert len([json.loads(line) for line in done.out.splitlines()]) == 5
    assert not (ran.place / "-").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--json",), "--json and --out - both want standard output"),
        (("--format", "parquet"), "parquet wants a file"),
    ],
)
def test_what_cannot_go_to_standard_output_is_refused(ran, arguments, message):
    done = ran.holdfast("export", "r", "--what", "samples", "--out", "-", *arguments)
    assert (done.code, done.out) == (Exit.USAGE, "")
    assert message in done.line
    assert not (ran.place / "-").exists()


def test_a_report_is_a_file(ran):
    done = ran.holdfast("report", "r", "--out", "-")
    assert (done.code, done.out) == (Exit.USAGE, "")
    assert "name a file instead of '-'" in done.line
    assert not (ran.place / "-").exists()


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_an_export_takes_the_place_of_no_journal(ran, form, tmp_path):
    other = tmp_path / "other.db"
    shutil.copy(ran.journal, other)
    before = other.read_bytes()
    for command in (
        ("export", "r", "--what", "samples", "--format", form),
        ("report", "r"),
    ):
        done = ran.holdfast(*command, "--out", other)
        assert done.code == Exit.USAGE
        assert f"{other} is the Holdfast journal {other}, which is never written over" in done.line
    assert other.read_bytes() == before


def test_a_count_of_one_has_its_singular(shell):
    shell.tasks("sum")
    shell.finished_run()
    done = shell.holdfast("export", "r", "--what", "trajectories", "--out", "t.jsonl")
    assert done.out == "wrote 1 trajectory of run r to t.jsonl\n"
    shell.damage("UPDATE records SET body = zeroblob(9) WHERE position = 2")
    done = shell.holdfast("journal", "check", shell.journal)
    assert done.code == Exit.CORRUPT
    assert "1 run, 1 task, 1 trajectory, " in done.out
    assert "0 deliveries" in done.out
    findings = [line for line in done.out.splitlines() if line.startswith("  r/sum/0")]
    assert len(findings) == 1
    assert "1 finding; --repair cuts" in done.out


def test_a_journal_whose_end_is_gone_is_corrupt_and_says_what_can_be_done(ran, tmp_path):
    copy = tmp_path / "copy.db"
    shutil.copy(ran.journal, copy)
    os.truncate(copy, copy.stat().st_size // 2)
    for arguments in (
        ("journal", "check", copy),
        ("journal", "check", copy, "--repair"),
        ("runs", "--journal", copy),
        ("export", "r", "--what", "samples", "--out", tmp_path / "o", "--journal", copy),
        ran.arguments("--samples", 2, "--quiet", journal=copy),
    ):
        done = ran.holdfast(*arguments)
        assert done.code == Exit.CORRUPT, arguments
        assert f"journal {copy} is damaged" in done.line
        assert "sqlite3 FILE .recover" in done.line
        assert "--repair" not in done.line, "it cannot"


def test_a_device_is_no_journal(ran):
    done = ran.run("--quiet", journal="/dev/null")
    assert done.code == Exit.USAGE
    assert "journal /dev/null cannot be written: it is not a regular file" in done.line
    done = ran.holdfast("journal", "check", "/dev/null")
    assert done.code == Exit.USAGE
    assert "/dev/null is not a regular file" in done.line


def test_a_headline_is_short_however_long_the_message(shell):
    shell.write("agent.py", LONG_MESSAGE)
    shell.tasks("a")
    done = shell.finished_run("--quiet")
    assert "ValueError: too long: xxx" in done.out
    assert max(map(len, done.out.splitlines())) < 1_100
    head = shell.holdfast("show", "r", "a/0").out.splitlines()[0]
    assert head.startswith("r/a/0: FAILED (ValueError: too long: xxx")
    assert len(head) < 600


def test_the_traceback_of_a_bug_begins_in_the_rollout(ran):
    text = ran.holdfast("show", "r", "bug/0").out
    (first, *_) = [line.strip() for line in text.splitlines() if line.startswith("      File ")]
    assert first.startswith(f'File "{ran.place / "agent.py"}"')
