"""The configuration file: what is always the same is written down once."""

import json

import pytest

from holdfast.records.exit_codes import Exit
from support.cli.shell import CommandLine, end, start


@pytest.fixture
def configured(shell: CommandLine) -> CommandLine:
    shell.write(
        "holdfast.toml",
        f'policy = "{shell.engine.url}"\nmodel = "{shell.engine.model}"\njournal = "all.db"\n'
        'max-tokens = 7\n[run]\ntasks = "tasks.jsonl"\nrollout = "agent.py"\nmax_retry = 0\n',
    )
    return shell


def spec_of(shell: CommandLine, *arguments: object) -> dict:
    return json.loads(shell.holdfast("show", "x", "--json", *arguments).out)["spec"]


def test_a_run_needs_no_more_than_its_name(configured: CommandLine) -> None:
    done = configured.holdfast("run", "--run", "x")
    assert done.code == 0, done.err
    assert (configured.place / "all.db").exists()
    assert spec_of(configured)["sampling"]["max_tokens"] == 7


def test_the_command_line_wins(configured: CommandLine) -> None:
    other = configured.tasks("else", file="other.jsonl")
    arguments = ("--max-tokens", 5, "--tasks", other, "--journal=mine.db", "--stop", "b")
    configured.write(
        "holdfast.toml", (configured.place / "holdfast.toml").read_text() + 'stop=["a"]'
    )
    done = configured.holdfast("run", "agent.py:solve", "--run", "x", *arguments)
    assert done.code == 0, done.err
    spec = spec_of(configured, "--journal", "mine.db")
    assert (spec["sampling"]["max_tokens"], spec["sampling"]["stop"]) == (5, ["b"])
    assert not (configured.place / "all.db").exists()


def test_pyproject_has_a_table_for_it(shell: CommandLine) -> None:
    shell.write("pyproject.toml", '[project]\nname = "x"\n[tool.holdfast]\nmax-tokens = 9\n')
    shell.finished_run(run="x")
    assert spec_of(shell)["sampling"]["max_tokens"] == 9


def test_a_table_goes_before_what_holds_everywhere(shell: CommandLine) -> None:
    shell.write("holdfast.toml", "max-tokens = 9\n[run]\nmax-tokens = 3\n[train]\nsteps = 2\n")
    shell.finished_run(run="x")
    assert spec_of(shell)["sampling"]["max_tokens"] == 3


def test_paths_start_at_the_folder_of_the_file(configured: CommandLine) -> None:
    (configured.place / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    inner = configured.place / "inner"
    inner.mkdir()
    done = end(start("run", "--run", "x", cwd=inner))
    assert done.code == 0, done.err
    assert (configured.place / "all.db").exists()
    assert list(inner.iterdir()) == []


def test_a_file_above_that_belongs_to_no_project_of_ours_is_not_used(
    configured: CommandLine,
) -> None:
    inner = configured.place / "inner"
    inner.mkdir()
    assert end(start("runs", cwd=inner)).line.startswith("holdfast: there is no journal at hold")


def test_a_resumed_run_uses_it_again(configured: CommandLine) -> None:
    assert configured.holdfast("run", "--run", "x").code == 0
    done = configured.holdfast("resume", "x")
    assert done.code == 0, done.err


def test_the_variable_names_another_file_or_none(configured: CommandLine) -> None:
    configured.write("other.toml", 'journal = "other.db"\n')
    named = configured.holdfast("runs", env={"HOLDFAST_CONFIG": "other.toml"})
    assert "other.db" in named.line
    assert "holdfast.db" in configured.holdfast("runs", env={"HOLDFAST_CONFIG": ""}).line
    missing = configured.holdfast("runs", env={"HOLDFAST_CONFIG": "no.toml"})
    assert (missing.code, "no.toml" in missing.line) == (Exit.USAGE, True)


def test_config_shows_what_is_set_and_for_whom(configured: CommandLine) -> None:
    out = configured.holdfast("config").out
    assert "holdfast.toml sets:" in out
    assert "max-tokens = 7  (run, train, gateway)" in out
    assert "max_retry = 0  (run)" in out
    data = json.loads(configured.holdfast("config", "--json").out)
    assert data["commands"]["run"]["max_retry"] == 0


def test_without_a_file_config_says_so(shell: CommandLine) -> None:
    assert shell.holdfast("config").out.startswith("no configuration file here")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("max-token = 3", "did you mean max-tokens?"),
        ("nonsense = 3", "nonsense is not an option of any command"),
        ("[run]\nlearning-rate = 1", "learning-rate is not an option of `holdfast run`"),
        ("[rum]\nx = 1", "no command 'rum'"),
        ("yes = true", "yes is typed each time"),
        ('max-tokens = "many"', "max-tokens wants a whole number"),
        ("max-tokens = 0", "must be 1 or more"),
        ("max-tokens = [1]", "wants one text or number"),
        ("journal = 5", "journal wants a path, as text, not 5"),
        ('ignore-eos = "yes"', "is true or false"),
        ('on-divergence = "guess"', "is one of fork, fail"),
        ("max-tokens = ", "is not TOML"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_file(
    shell: CommandLine, text: str, named: str
) -> None:
    shell.write("holdfast.toml", text)
    done = shell.run(run="x")
    assert done.code == Exit.USAGE
    assert named in done.line
    assert "holdfast.toml" in done.line
    assert not shell.journal.exists()
    assert shell.holdfast("run", "--help").code == 0


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('polcy = "http://x"', "did you mean policy?"),
        ("tasks = ", "is not TOML"),
        ("tasks = 5", "tasks wants"),
        ("[rn]\ntasks = 'a'", "no command 'rn' for a table; did you mean run?"),
    ],
)
def test_a_mistake_of_the_file_goes_before_what_is_missing_for_it(
    shell: CommandLine, text: str, named: str
) -> None:
    shell.write("holdfast.toml", text)
    done = shell.holdfast("run", "--run", "c1")
    assert done.code == Exit.USAGE
    (line,) = done.err.splitlines()
    assert "holdfast.toml" in line
    assert named in line
    assert "are required" not in line


def test_an_option_with_another_name_in_python_is_a_key(shell: CommandLine) -> None:
    shell.write("holdfast.toml", '[train]\nasync = true\n[serve]\nversion = "v1"\n')
    done = shell.holdfast("config")
    assert done.code == 0, done.err
    assert "async" in done.out
    shell.write("holdfast.toml", '[train]\nasync = "yes"\n')
    assert "async is true or false, not 'yes'" in shell.holdfast("config").line
