"""Every engine, through the command line: what it is said to be fit for, and whole runs that are
killed and resumed."""

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.journal.damage.check import check
from support.conformance.engines import (
    FIRST,
    LONGEST,
    Engine,
    once_for_each_server,
    skip_unless_exhaustive,
)
from support.conformance.runs import SAMPLES, TASKS, TOKENS, TURNS, CommandLine


@pytest.fixture
def shell(tmp_path: Path, engine: Engine) -> CommandLine:
    return CommandLine(tmp_path, once_for_each_server(engine))


@pytest.fixture
def killing(shell: CommandLine) -> CommandLine:
    """The fake ones are killed throughout the crash suite, so here not every time."""
    if shell.engine.tokenizer is None:
        skip_unless_exhaustive()
    return shell


def test_it_is_fit_for_training(shell: CommandLine) -> None:
    arguments = ["policy", "check", shell.engine.server.url]
    if shell.engine.named is not None:
        arguments += ["--dialect", shell.engine.named]
    done = shell.holdfast(*arguments)
    assert done.code == 0, done.err
    first, *findings, last = done.out.splitlines()
    assert f"model {shell.engine.server.model!r} ({LONGEST} tokens)" in first
    assert first.endswith(f"dialect {shell.engine.dialect}")
    assert last == "fit for training: yes"
    message = {line[6:23].strip(): line[23:] for line in findings}
    can = shell.engine.can
    assert message["seeds"].startswith("repeat")
    assert ("goes on" in message["seeds"]) is can.seeds_by_position
    assert message["weight versions"].startswith(
        "reported" if can.tells_versions else "not reported"
    )
    assert message["streaming"].startswith("works: ")


def test_a_run_that_was_killed_twice_exports_the_bytes_of_one_that_was_not(
    killing: CommandLine,
) -> None:
    shell = killing
    done = shell.run("undisturbed")
    assert done.code == 0, done.err
    shell.killed_and_resumed("killed")
    assert shell.export("killed") == shell.export("undisturbed")
    assert_samples(shell, "killed")


def test_a_run_that_was_killed_in_mid_reply_goes_on_and_is_whole(killing: CommandLine) -> None:
    shell = killing
    shell.killed_and_resumed("killed", "--partial-tokens", 4)
    assert not check(shell.place / "killed.db").findings
    exported = shell.export("killed")
    assert_samples(shell, "killed")
    if not shell.engine.can.seeds_by_position:
        return
    assert shell.run("undisturbed").code == 0
    undisturbed = shell.export("undisturbed")
    if shell.engine.can.tells_as_it_goes:
        assert exported == undisturbed
    else:
        assert without_versions(exported) == without_versions(undisturbed)


def without_versions(exported: bytes) -> list[Any]:
    samples: list[Any] = [json.loads(line) for line in exported.splitlines()]
    versions = {span[0] for sample in samples for span in sample.pop("version_spans")}
    assert versions <= {"", FIRST}
    return samples


def assert_samples(shell: CommandLine, name: str) -> None:
    """As many as were asked for, and each of them what a trainer can use."""
    lines = (shell.place / f"{name}.jsonl").read_text().splitlines()
    samples: list[Any] = [json.loads(line) for line in lines]
    whole = {(sample["task"], sample["sample"]) for sample in samples}
    assert len(whole) == TASKS * SAMPLES
    for sample in samples:
        length = len(sample["token_ids"])
        assert len(sample["loss_mask"]) == len(sample["logprobs"]) == length
        assert sample["status"] in ("COMPLETED", "TRUNCATED")
        trained = sum(sample["loss_mask"])
        assert 0 < trained <= TURNS * TOKENS
        for mask, logprob in zip(sample["loss_mask"], sample["logprobs"], strict=True):
            assert (-100 < logprob <= 0) if mask else logprob == 0
        spans = [range(start, end) for _, start, end, *_ in sample["version_spans"]]
        covered = [place for span in spans for place in span]
        assert [place for place, mask in enumerate(sample["loss_mask"]) if mask] == covered
