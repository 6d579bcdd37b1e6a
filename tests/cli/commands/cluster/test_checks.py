"""What is wrong about a cluster is one line, before anything is begun."""

import argparse

import pytest

from holdfast.cli.commands.cluster.checks import _requirements
from holdfast.records.errors import UsageError
from support.cli.shell import CommandLine

URL = "postgresql://trainer@db.invalid/holdfast"


class NoEngine:
    url, model = "http://127.0.0.1:9", "none"


@pytest.fixture
def shell(tmp_path):
    return CommandLine(tmp_path, NoEngine())


def refused(shell: CommandLine, *arguments: object, **options: object) -> str:
    done = shell.run(*arguments, **options)
    assert done.code == 2, done.err
    assert done.out == ""
    return done.line


def test_a_file_is_no_journal_of_several_machines(shell):
    line = refused(shell, "--cluster", "auto")
    assert "--journal holdfast.db" in line
    assert "postgresql://" in line
    assert "loses data" in line
    assert not shell.journal.exists()


@pytest.mark.parametrize("address", ["ray://head:10001", "nowhere", "http://head:6379", "a:b"])
def test_an_address_that_is_none(shell, address):
    assert f"--cluster {address}: wants auto" in refused(
        shell, "--cluster", address, "--journal", URL
    )


def test_without_ray_it_says_what_to_install(shell, tmp_path):
    (tmp_path / "hidden" / "ray").mkdir(parents=True)
    (tmp_path / "hidden" / "ray" / "__init__.py").write_text("raise ImportError('none here')\n")
    done = shell.run(
        "--cluster", "auto", "--journal", URL, env={"PYTHONPATH": f"{tmp_path}/hidden"}
    )
    assert done.code == 2
    assert "pip install '.[ray]'" in done.line


def test_a_folder_too_large_to_travel(shell):
    with (shell.place / "weights.bin").open("wb") as file:
        file.truncate(200 * 1024 * 1024)
    line = refused(shell, "--cluster", "auto", "--journal", URL)
    assert "weights.bin (200 MiB)" in line
    assert "--cluster-exclude weights.bin" in line


def test_the_embedded_engine_serves_one_machine(shell):
    arguments = ["run", "agent.py", "--tasks", "tasks.jsonl", "--run", "r"]
    done = shell.holdfast(*arguments, "--cluster", "auto", "--journal", URL)
    assert done.code == 2
    assert "needs --policy URL" in done.line


def test_requirements_that_cannot_be_read(shell):
    line = refused(shell, "--cluster", "auto", "--journal", URL, requirements="none.txt")
    assert "--requirements none.txt cannot be read" in line


@pytest.mark.parametrize("line", ["-r base.txt", "--constraint=c.txt", "-e .", "./own.whl"])
def test_requirements_that_name_files_of_this_machine(shell, line):
    (shell.place / "needs.txt").write_text(f"roman==5.0\n{line}\n")
    refusal = refused(shell, "--cluster", "auto", "--journal", URL, requirements="needs.txt")
    assert f"'{line}' names a file of this machine" in refusal


def test_requirements_are_read_as_pip_reads_them(tmp_path):
    path = tmp_path / "needs.txt"
    path.write_text(
        "# the rollout's\n\nroman==5.0 \\\n    --hash=sha256:00  # pinned\n"
        "own @ git+https://host/own#egg=own\n--extra-index-url https://host/simple\n"
    )
    assert _requirements(argparse.Namespace(requirements=str(path))) == [
        "roman==5.0      --hash=sha256:00",
        "own @ git+https://host/own#egg=own",
        "--extra-index-url https://host/simple",
    ]
    path.write_text("x" * 100_001)
    with pytest.raises(UsageError, match="can have 100,000"):
        _requirements(argparse.Namespace(requirements=str(path)))


@pytest.mark.parametrize("workers", ["0", "-1", "many"])
def test_a_number_of_workers_that_is_none(shell, workers):
    done = shell.run("--cluster", "auto", "--workers", workers)
    assert done.code == 2
    assert "--workers" in done.err
