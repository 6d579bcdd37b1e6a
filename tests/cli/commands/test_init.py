"""`holdfast init`: each kind of project is made, runs as it is, and goes on after a SIGKILL."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.cli.options.projects import KINDS
from holdfast.records.exit_codes import Exit
from holdfast.testing import FakeEngine
from support.cli.shell import Done, end, start

ADD = '@0 <tool_call>{"name": "add", "arguments": {"a": 17, "b": 25}}</tool_call>'
GUESSES = [f"@{turn} Is it {turn * 2 + 1}?" for turn in range(8)]
REPLIES = {"agent": [ADD, "@1 It is 42."], "game": GUESSES, "black-box": ["It is 42."]}


def made(tmp_path: Path, kind: str) -> Path:
    done = end(start("init", "--kind", kind, "project", cwd=tmp_path))
    assert done.code == 0, done.err
    assert max(map(len, done.out.splitlines())) <= 100
    return tmp_path / "project"


def command(*arguments: object, cwd: Path, crash: str = "") -> Done:
    env = {"HOLDFAST_CRASH": crash, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    return end(start(*arguments, cwd=cwd, env=env, forked=False))


def exported(folder: Path, journal: str) -> bytes:
    (name,) = end(start("runs", "--journal", journal, "--names", cwd=folder)).out.split()
    arguments = ("--what", "samples", "--out", "samples.jsonl", "--journal", journal)
    done = end(start("export", name, *arguments, cwd=folder))
    assert done.code == 0, done.err
    return (folder / "samples.jsonl").read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_a_project_has_forty_lines_at_most(tmp_path: Path, kind: str) -> None:
    files = [file for file in made(tmp_path, kind).iterdir() if file.is_file()]
    assert sum(len(file.read_text().splitlines()) for file in files) <= 40


@pytest.mark.parametrize("kind", KINDS)
def test_its_code_is_clean(tmp_path: Path, kind: str) -> None:
    folder = made(tmp_path, kind)
    for arguments in (("check", "--isolated", "--select", "E,F,I,B"), ("format", "--check")):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *arguments, "--line-length", "100", "."],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", REPLIES)
def test_it_runs_and_goes_on_after_a_kill(tmp_path: Path, kind: str) -> None:
    folder = made(tmp_path, kind)
    with FakeEngine(replies=REPLIES[kind]) as engine:
        arguments = ("run", "--policy", engine.url, "--seed", 1)
        calm = command(*arguments, "--journal", "calm.db", cwd=folder)
        assert calm.code == 0, calm.err
        killed = command(*arguments, "--journal", "killed.db", cwd=folder, crash="after:12")
        assert killed.code == -signal.SIGKILL
        done = command(*arguments, "--journal", "killed.db", cwd=folder)
    assert done.code == 0, done.err
    assert "8 trajectories" in done.out
    assert exported(folder, "killed.db") == exported(folder, "calm.db") != b""


def test_the_agents_own_test_passes(tmp_path: Path) -> None:
    folder = made(tmp_path, "agent")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_an_evaluation_goes_on_after_a_kill(tmp_path: Path) -> None:
    folder = made(tmp_path, "evaluation")
    with FakeEngine(replies=[ADD, "@1 It is 42."], delay=0.5) as engine:
        arguments = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        arguments += ["--holdfast-policy", engine.url]
        first = subprocess.Popen(arguments, cwd=folder, stdout=subprocess.DEVNULL)
        while engine.stats().requests < 10:  # 8 first turns of the first setting, 2 second ones.
            assert first.poll() is None, "it ended before it was killed"
            time.sleep(0.02)
        first.kill()
        first.wait()
        again = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, check=False)
        assert again.returncode == 0, again.stdout
        # 2 rows × 4 samples × 2 settings × 2 turns, and those that were in flight.
        assert engine.stats().requests <= 32 + 8


def test_a_training_goes_on_after_a_kill(tmp_path: Path) -> None:
    folder = made(tmp_path, "training")
    small = ("train", "--steps", 2, "--groups", 2, "--samples", 2, "--eval-every", 2, "--limit", 8)
    killed = command(*small, cwd=folder, crash="train.stepped:1")
    assert killed.code == -signal.SIGKILL, killed.err
    done = command(*small, cwd=folder)
    assert done.code in (Exit.OK, Exit.NOTHING), done.err
    assert (folder / "runs" / "sums" / "weights" / "step-2").is_dir() or done.code == Exit.NOTHING


def test_it_never_overwrites_a_file(tmp_path: Path) -> None:
    folder = made(tmp_path, "agent")
    (folder / "agent.py").write_text("mine\n")
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    before = {file.name: file.read_text() for file in folder.iterdir()}
    for kind in KINDS:
        refused = end(start("init", "project", "--kind", kind, cwd=tmp_path))
        if kind == "evaluation":  # It shares no file with the agent.
            assert refused.code == 0
            continue
        assert refused.code == Exit.USAGE
        assert "already; name another folder" in refused.line
    assert {name: (folder / name).read_text() for name in before} == before


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused = end(start("init", "file/project", cwd=tmp_path))
    assert refused.code == Exit.USAGE
    assert "file" in refused.line


def test_it_prints_what_it_wrote_and_what_to_do(tmp_path: Path) -> None:
    done = end(start("init", "my project", cwd=tmp_path))
    assert "agent.py, tasks.jsonl, test_agent.py, holdfast.toml" in done.out
    assert "cd 'my project'" in done.out
    listed = json.loads(end(start("init", "other", "--json", cwd=tmp_path)).out)
    assert listed["files"][0] == "agent.py"
    assert sorted(os.listdir(tmp_path / "other")) == sorted(listed["files"])
