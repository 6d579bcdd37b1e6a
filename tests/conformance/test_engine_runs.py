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
from support.conformance.runs import SAMPLES, TASKS, TOKENS, TURNS, Lab


@pytest.fixture
def lab(tmp_path: Path, engine: Engine) -> Lab:
    return Lab(tmp_path, once_for_each_server(engine))


@pytest.fixture
def killing(lab: Lab) -> Lab:
    """The fake ones are killed throughout the crash suite, so here not every time."""
    if lab.engine.tokenizer is None:
        skip_unless_exhaustive()
    return lab


def test_it_is_fit_for_training(lab: Lab) -> None:
    words = ["policy", "check", lab.engine.server.url]
    if lab.engine.named is not None:
        words += ["--dialect", lab.engine.named]
    done = lab.holdfast(*words)
    assert done.code == 0, done.err
    first, *findings, last = done.out.splitlines()
    assert f"model {lab.engine.server.model!r} ({LONGEST} tokens)" in first
    assert first.endswith(f"dialect {lab.engine.dialect}")
    assert last == "fit for training: yes"
    told = {line[6:23].strip(): line[23:] for line in findings}
    can = lab.engine.can
    assert told["seeds"].startswith("repeat")
    assert ("goes on" in told["seeds"]) is can.seeds_by_position
    assert told["weight versions"].startswith("reported" if can.tells_versions else "not reported")
    assert told["streaming"].startswith("works: ")


def test_a_run_that_was_killed_twice_exports_the_bytes_of_one_that_was_not(killing: Lab) -> None:
    lab = killing
    done = lab.run("undisturbed")
    assert done.code == 0, done.err
    lab.killed_and_resumed("killed")
    assert lab.export("killed") == lab.export("undisturbed")
    assert_samples(lab, "killed")


def test_a_run_that_was_killed_in_mid_reply_goes_on_and_is_whole(killing: Lab) -> None:
    lab = killing
    lab.killed_and_resumed("killed", "--partial-tokens", 4)
    assert not check(lab.place / "killed.db").findings
    exported = lab.export("killed")
    assert_samples(lab, "killed")
    if not lab.engine.can.seeds_by_position:
        return
    assert lab.run("undisturbed").code == 0
    undisturbed = lab.export("undisturbed")
    if lab.engine.can.tells_as_it_goes:
        assert exported == undisturbed
    else:
        assert without_versions(exported) == without_versions(undisturbed)


def without_versions(exported: bytes) -> list[Any]:
    samples: list[Any] = [json.loads(line) for line in exported.splitlines()]
    versions = {span[0] for sample in samples for span in sample.pop("version_spans")}
    assert versions <= {"", FIRST}
    return samples


def assert_samples(lab: Lab, name: str) -> None:
    """As many as were asked for, and each of them what a trainer can use."""
    lines = (lab.place / f"{name}.jsonl").read_text().splitlines()
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
