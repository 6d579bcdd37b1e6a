"""Runs that cannot be: told in one line with the bound that they break, and nothing is touched."""

import argparse
import json
import re

import pytest

from holdfast.cli.main import _parser
from holdfast.records.exit_codes import Exit
from support.paths import DOCS


def files(place) -> list:
    """All but what Python writes when it reads a module."""
    return sorted(file for file in place.iterdir() if file.name != "__pycache__")


def refused(shell, *extra, **options) -> str:
    before = files(shell.place)
    done = shell.run(*extra, **options)
    assert (done.code, done.out) == (Exit.USAGE, ""), done.err
    assert done.line.startswith("holdfast: ")
    assert files(shell.place) == before
    assert shell.engine.stats().requests == 0
    return done.line


HUGE = "99999999999999999999"
MOST = "9223372036854775807"


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--samples", HUGE, f"must be 1 to 1000000, not {HUGE}"),
        ("--samples", "1000000000", "must be 1 to 1000000, not 1000000000"),
        ("--max-tokens", HUGE, f"must be 1 to {MOST}, not {HUGE}"),
        ("--concurrency", HUGE, f"must be 1 to {MOST}, not {HUGE}"),
        ("--max-retry", HUGE, f"must be 0 to {MOST}, not {HUGE}"),
        ("--temperature", "inf", "must be a finite number, 0 or more, not inf"),
        ("--temperature", "-inf", "must be a finite number, 0 or more, not -inf"),
        ("--grace", "nan", "must be a finite number, 0 seconds or more, not nan"),
        ("--lease", "1e999", "must be a finite number, longer than 0 seconds, not 1e999"),
        ("--run-deadline", "inf", "must be a finite number, longer than 0 seconds, not inf"),
        ("--top-p", "nan", "must be a finite number, above 0 and at most 1, not nan"),
        ("--top-p", "inf", "must be a finite number, above 0 and at most 1, not inf"),
        ("--top-p", "0", "must be above 0 and at most 1, not 0"),
        ("--top-p", "most", "wants a number, not 'most'"),
    ],
)
def test_the_bound_that_is_broken_is_the_one_that_is_told(shell, option, value, message):
    assert f"argument {option}: {message}; see" in refused(shell, f"{option}={value}")


def test_a_port_that_is_none_is_told_its_bounds(shell):
    arguments = shell.arguments("--port", "70000")[2:]
    done = shell.holdfast("gateway", *arguments)
    assert done.code == Exit.USAGE
    assert "argument --port: must be 0 to 65535, not 70000" in done.line


def test_more_trajectories_than_a_run_has_are_refused_at_once(shell):
    shell.tasks(*(f"t{n}" for n in range(11)))
    line = refused(shell, "--samples", 1_000_000)
    assert "11 tasks with 1,000,000 samples each are 11,000,000 trajectories" in line
    assert "a run has at most 10,000,000; lower the samples, or make more runs" in line


def test_more_valid_members_than_members_are_refused(shell):
    line = refused(shell, "--group-at-least", 5, "--samples", 1)
    assert "a group cannot have at least 5 valid members (--group-at-least" in line


@pytest.mark.parametrize("url", ["mysql://me:secret@db/x", "https://db/x"])
def test_a_journal_on_another_server_is_refused_and_no_folder_is_made(shell, url):
    line = refused(shell, journal=url)
    assert "a journal is a file, like holdfast.db, or memory:, or postgresql://" in line
    assert "secret" not in line


@pytest.mark.parametrize("name", ["a\nb", "\x1b[2J", "a\tb"])
def test_a_run_name_with_control_characters_is_refused(shell, name):
    line = refused(shell, run=name)
    assert f"a run's name has no control characters or line breaks: {name!a}" in line


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"ground_truth": 123456789012345678901234567890},
            "tasks.jsonl:1: ground_truth is an integer of more than 64 bits; write it as a string",
        ),
        ({"answer": "\ud800"}, "tasks.jsonl:1: answer has half of a character, a lone surrogate"),
        ({"tools": [{"type": "function"}]}, "tasks.jsonl:1: tools[0] names no function"),
    ],
)
def test_a_task_that_cannot_be_recorded_is_refused_with_its_line_and_field(shell, row, message):
    shell.write("tasks.jsonl", json.dumps({"prompt": "a", **row}) + "\n")
    assert message in refused(shell)


def test_both_meanings_of_exit_code_1_are_told(shell):
    assert re.search(
        r"^ +1  trajectories failed .*\n +or, of `policy check`: .* not fit for training$",
        shell.holdfast("--help").out,
        re.MULTILINE,
    )


def test_the_page_on_runs_says_which_commands_have_no_json_and_what_exit_code_1_means():
    page = (DOCS / "runs.md").read_text()
    without = [name for name, has in commands_with_json(_parser(), "").items() if not has]
    assert without == [
        "view",
        "trace",
        "resume",
        "serve",
        "completion",
    ]  # `resume` takes that of its command.
    named = "every command except `view`, `trace`, `serve` and `completion` prints JSON"
    assert f"With `--json`, {named}" in page
    assert re.search(
        r"^\| 1 \| .*you gave .*From `policy check`: you cannot train with .* \|$",
        page,
        re.MULTILINE,
    )


def commands_with_json(parser, name) -> dict[str, bool]:
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not inner:
        return {name: any("--json" in action.option_strings for action in parser._actions)}
    return {
        key: has
        for word, child in inner[0].choices.items()
        for key, has in commands_with_json(child, f"{name} {word}".strip()).items()
    }


def test_a_second_scorer_is_refused_and_not_the_only_one_that_counts(shell):
    error = refused(shell, "--scorer", "score", "--scorer", "trl:rewards.py:correct")
    assert "score and trl:rewards.py:correct: give one function, which may add up others" in error
