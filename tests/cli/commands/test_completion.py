"""Completion in real shells, as somebody who presses Tab sees it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli.main import main
from support.cli.shell import CommandLine


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def needs(shell: str) -> str:
    result = shutil.which(shell)
    if result is None:
        pytest.skip(f"no {shell} here")
    return result


def in_bash(text: str, folder: Path, *arguments: str) -> list[str]:
    """What bash offers for the last of these words."""
    listed = " ".join(f"'{word}'" for word in arguments)
    request = (
        f"COMP_WORDS=(holdfast {listed}); COMP_CWORD={len(arguments)}; _holdfast; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        [needs("bash"), "--norc", "-c", f"{text}\n{request}"],
        capture_output=True,
        text=True,
        cwd=folder,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_commands_options_values_and_files(capsys, tmp_path: Path) -> None:
    text = script("bash", capsys)
    (tmp_path / "tasks.jsonl").touch()

    def offered(*arguments: str) -> list[str]:
        return in_bash(text, tmp_path, *arguments)

    assert offered("pr") == ["prune"]
    assert {"run", "resume", "rm", "--version"} <= set(offered(""))
    assert offered("run", "--max-r") == ["--max-retry"]
    assert offered("run", "--group-shortfall", "") == ["partial", "drop"]
    assert offered("run", "--tasks", "t") == ["tasks.jsonl"]
    assert offered("run", "--samples", "t") == []
    assert offered("journal", "ch") == ["check"]
    assert offered("journal", "check", "--re") == ["--repair"]
    assert "--as-worker" not in offered("gateway", "--")


def test_bash_completes_names_of_runs(capsys, shell: CommandLine) -> None:
    shell.finished_run(run="first")
    shell.finished_run(run="second")
    bin_folder = shell.place / "bin"
    bin_folder.mkdir()
    program = bin_folder / "holdfast"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m holdfast "$@"\n')
    program.chmod(0o755)
    text = f"PATH={bin_folder}:$PATH\n{script('bash', capsys)}"
    assert in_bash(text, shell.place, "resume", "fi") == ["first"]
    assert {"first", "second"} <= set(in_bash(text, shell.place, "rm", ""))


def test_zsh_takes_the_script(capsys, tmp_path: Path) -> None:
    zsh = needs("zsh")
    (tmp_path / "_holdfast").write_text(script("zsh", capsys))
    program = (
        f"fpath=({tmp_path} $fpath); autoload -Uz compinit; compinit -u -D; "
        "autoload +X _holdfast; print -- $_comps[holdfast]; whence -w _holdfast"
    )
    done = subprocess.run(
        [zsh, "-f", "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stderr == ""
    assert done.stdout.split("\n")[:2] == ["_holdfast", "_holdfast: function"]
    assert subprocess.run([zsh, "-n", tmp_path / "_holdfast"], check=True).returncode == 0


def test_fish_completes_commands_options_and_values(capsys, tmp_path: Path) -> None:
    fish = needs("fish")
    file = tmp_path / "holdfast.fish"
    file.write_text(script("fish", capsys))

    def offered(line: str) -> list[str]:
        done = subprocess.run(
            [fish, "--no-config", "-c", f"source {file}; complete -C '{line}'"],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
            env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        )
        assert done.stderr == ""
        return [line.split("\t")[0] for line in done.stdout.splitlines()]

    assert offered("holdfast pr") == ["prune"]
    assert offered("holdfast run --max-r") == ["--max-retry"]
    assert sorted(offered("holdfast run --group-shortfall ")) == ["drop", "partial"]
    assert offered("holdfast journal ch") == ["check"]
    assert "--repair" in offered("holdfast journal check --")


def test_every_command_and_option_is_in_every_script(capsys) -> None:
    for shell in ("bash", "zsh", "fish"):
        text = script(shell, capsys)
        for word in ("resume", "prune", "compact", "repair", "chat-template-kwargs", "older-than"):
            assert word in text, (shell, word)
