"""Suggestions name what there is, and nothing that is far from it."""

import itertools

from holdfast.cli.main import _parser
from holdfast.cli.options.suggestions import _ELSEWHERE, meant


def test_each_word_of_ours_exists_and_none_of_theirs_does():
    parser = _parser()
    commands = [parser, *parser.commands.values()]
    known = set(parser.commands) | set(
        itertools.chain(*(c._option_string_actions for c in commands))
    )
    assert set(itertools.chain(*_ELSEWHERE)) <= known
    assert not set(itertools.chain(*_ELSEWHERE.values())) & set(parser.commands)


def test_what_is_known_elsewhere_goes_before_what_is_spelled_alike():
    assert meant("--lr", ["--kl", "--learning-rate"]) == "--learning-rate"
    assert meant("--lr", ["--kl"]) is None
    assert meant("--taks", ["--tasks", "--run"]) == "--tasks"
    assert meant("--colour", ["--journal"]) is None


def test_what_deletes_is_advised_last() -> None:
    commands = ["rm", "run", "runs"]
    assert meant("rum", commands) == "run"
    assert meant("rmm", ["rm", "show"]) == "rm"
