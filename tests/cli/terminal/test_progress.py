"""Help, progress and terminals: what a person sees."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time

import pytest

from holdfast.records.exit_codes import Exit
from holdfast.testing import FakeEngine
from support.cli.shell import CommandLine, end, start

COMMANDS = [(), ("run",), ("runs",), ("show",), ("export",), ("journal",), ("journal", "check")]


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_help_explains_every_word(shell, arguments):
    word = "--help-all" if arguments == ("run",) else "--help"
    done = shell.holdfast(*arguments, word, env={"COLUMNS": "100"})
    assert (done.code, done.err) == (0, "")
    assert "usage: " + " ".join(("holdfast", *arguments)) in done.out
    if arguments:
        assert done.out.endswith("exit codes: holdfast --help\n")
    else:
        mapping = dict(re.findall(r"^ +(\d+)  (\S.*)$", done.out, re.MULTILINE))
        assert mapping == {str(code.value): code.meaning for code in Exit}
    # An option without a word about it ends its line.
    unexplained = re.findall(
        r"^ +(?:-\S+, )?--\S+(?: [A-Z.:\[\]]+| \{\S+\})?$\n(?! {20})", done.out, re.MULTILINE
    )
    assert unexplained == []
    assert max(map(len, done.out.splitlines())) <= 100


@pytest.mark.parametrize("command", ["run", "train", "gateway"])
def test_help_shows_common_options_and_help_all_shows_every_option(shell, command):
    common, everything = (
        shell.holdfast(command, word, env={"COLUMNS": "100"}).out
        for word in ("--help", "--help-all")
    )
    shown, all_options = (
        re.findall(r"^  (?:-h, )?(--\S+)", text, re.MULTILINE) for text in (common, everything)
    )
    assert set(shown) < set(all_options)
    assert len(all_options) == len(set(all_options))
    assert {"--tasks", "--run", "--policy", "--model", "--samples"} <= set(shown)
    assert len(shown) == len(["--help", "--help-all"]) + 10
    left_out = len(all_options) - len(shown)
    assert f"{left_out} more options, shown by `holdfast {command} --help-all`:" in common
    titles = re.findall(r"^  ([a-z].*)$", common.partition("--help-all`:\n")[2], re.MULTILINE)
    assert titles
    assert all(f"\n{title}:\n" in everything for title in titles)


@pytest.mark.parametrize("command", ["run", "train", "gateway", "serve", "export", "show", "init"])
def test_each_option_has_one_line_of_help_at_100_columns(shell, command):
    is_long = command in ("run", "train", "gateway", "serve")
    text = shell.holdfast(
        command, "--help-all" if is_long else "--help", env={"COLUMNS": "100"}
    ).out
    entries = re.findall(r"^  -.*(?:\n {20,}\S.*)*", text, re.MULTILINE)
    assert len(entries) > 2
    # A name that is longer than its column has a line of its own.
    texts = [re.split(r"(?<=\S) {2,}|\n *", entry.strip())[1:] for entry in entries]
    assert [text for text in texts if len(text) != 1] == []


def test_a_command_that_is_none_is_refused_and_no_command_is_help(shell):
    done = shell.holdfast("fly")
    assert done.code == Exit.USAGE
    assert "there is no command 'fly'" in done.line
    done = shell.holdfast()
    assert done.code == Exit.USAGE
    assert "usage: holdfast" in done.err
    assert shell.holdfast("--version").out.startswith("holdfast ")


def test_progress_that_is_no_terminal_is_plain_lines(shell):
    done = shell.finished_run()
    assert re.fullmatch(r"2/2 done in \d+s, reward [\d.]+ ± [\d.]+, 4 turns", done.line)
    assert shell.finished_run("--quiet").err == ""
    assert "\x1b" not in done.err + done.out


def test_the_report_as_json_is_all_that_is_on_standard_output(shell):
    source = (shell.place / "agent.py").read_text()
    source = "print('imported')\n" + source.replace("t.add(*t", "print('rolled out'); t.add(*t")
    shell.write("agent.py", source)
    done = shell.finished_run("--json")
    report = json.loads(done.out)
    assert report["by_status"] == {"COMPLETED": 1, "TRUNCATED": 1}
    assert report["stopped"] == ""
    assert "imported" in done.err
    assert "rolled out" in done.err


def on_a_terminal(arguments, cwd) -> "tuple[subprocess.Popen[bytes], int]":
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", *(str(word) for word in arguments)],
        stdin=theirs, stdout=theirs, stderr=theirs, cwd=cwd,
        env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"},
    )  # fmt: skip
    os.close(theirs)
    return process, ours


def read_all(ours: int) -> str:
    data = b""
    try:
        while chunk := os.read(ours, 65536):
            data += chunk
    except OSError:  # How Linux says that the other side is closed.
        pass
    finally:
        os.close(ours)
    return data.decode()


def test_a_terminal_shows_a_live_line_that_ends_with_everything_done(tmp_path):
    with FakeEngine(mean_length=10, delay=0.15) as engine:
        shell = CommandLine(tmp_path, engine)
        process, ours = on_a_terminal(
            shell.arguments("--samples", 3, "--concurrency", 2), shell.place
        )
        output = read_all(ours)
        assert process.wait(60) == 0, output
    assert "0/6 done" in output
    assert re.search(r"6/6 done in \d+s, reward", output)
    assert "━" in output
    assert "run r: 6 trajectories" in output
    assert output.rindex("\x1b[?25h") > output.rindex("\x1b[?25l"), "the cursor is back"


NOISY = """
import logging, sys

logging.basicConfig(level=logging.INFO, stream=sys.__stderr__)


async def solve(t):
    t.add(*t.task.messages)
    await t.generate()
    logging.getLogger("mine").info("logged in %s", t.task.id)
    print("printed in", t.task.id)
"""


def test_what_user_code_logs_and_prints_leaves_the_line_whole(tmp_path):
    with FakeEngine(mean_length=10, delay=0.5) as engine:
        shell = CommandLine(tmp_path, engine)
        shell.write("agent.py", NOISY)
        process, ours = on_a_terminal(shell.arguments("--concurrency", 1), shell.place)
        output = read_all(ours)
        assert process.wait(60) == 0, output
    assert "0/2 done" in output
    for line in ("INFO:mine:logged in sum", "printed in sum"):
        before, _, after = output.partition(line)
        assert before.endswith("\x1b[2K"), "the line is taken away before"
        assert "/2 done" in after.split("\n")[1], "and drawn anew behind"


def test_a_run_that_is_refused_draws_nothing(tmp_path, shell):
    shell.finished_run()
    process, ours = on_a_terminal(shell.arguments("--samples", 3), shell.place)
    output = read_all(ours)
    assert process.wait(60) == Exit.CHANGED
    assert "done" not in output


def test_two_signals_leave_a_terminal_as_it_was(tmp_path):
    with FakeEngine(delay=600) as engine:
        shell = CommandLine(tmp_path, engine)
        process, ours = on_a_terminal(shell.arguments("--grace", 600), shell.place)
        text = ""
        while "0/2 done" not in text:
            text += os.read(ours, 65536).decode()
        process.send_signal(signal.SIGINT)
        while "again to stop at once" not in text:
            text += os.read(ours, 65536).decode()
        process.send_signal(signal.SIGINT)
        text += read_all(ours)
        assert process.wait(60) == Exit.INTERRUPTED
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l"), "the cursor is back"


def test_an_interrupt_before_the_work_has_begun_is_one_line(shell):
    shell.write("agent.py", "import time\nprint('importing', flush=True)\ntime.sleep(600)\n")
    process = start(*shell.arguments(), cwd=shell.place)
    assert process.stdout.readline() == "importing\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    done = end(process)
    assert done.code == Exit.INTERRUPTED
    assert "interrupted" in done.line
    assert not shell.journal.exists()


def test_a_reader_of_the_progress_that_goes_away_does_not_stop_the_run(shell):
    process = start(*shell.arguments(), cwd=shell.place, forked=False)
    process.stderr.close()
    assert process.wait(60) == 0
    assert "2 trajectories" in process.stdout.read()
    process.stdout.close()
