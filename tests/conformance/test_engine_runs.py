"""Every engine, through the command line: what it is said to be fit for, and whole runs that are
killed and resumed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from engines import FIRST, LONGEST, Engine, once_for_each_server, skip_unless_exhaustive

from holdfast.journal.damage.check import check

AGENT = '''
import holdfast


@holdfast.tool(contract="idempotent")
def multiply(a: int, b: int) -> int:
    """Multiplies two numbers."""
    return a * b


async def solve(t: holdfast.Rollout) -> None:
    t.add(*t.task.messages)
    for turn in range(3):
        reply = await t.generate(tools=[multiply])
        for call in reply.tool_calls:
            await t.tool(call, multiply)
        t.add(f"That has {len(reply.text)} characters. Go on, turn {turn}.")


def score(trajectory: holdfast.TrajectoryView) -> float:
    return sum(len(turn.step.message.text) for turn in trajectory.turns) / 100
'''
TASKS, SAMPLES, TURNS = 4, 3, 3
TOKENS = 20
KILLS = ("after:14", "before:19")


class Done(NamedTuple):
    code: int
    out: str
    err: str


class Lab:
    """A folder with a rollout and tasks, and the commands of a user in it."""

    def __init__(self, place: Path, engine: Engine):
        self.place = place
        self.engine = engine
        (place / "agent.py").write_text(AGENT)
        lines = [
            json.dumps({"id": f"t{i}", "prompt": f"What is {i + 2} * {7 * i + 3}?"})
            for i in range(TASKS)
        ]
        (place / "tasks.jsonl").write_text("\n".join(lines))

    def holdfast(self, *words: object, crash: str = "") -> Done:
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", *(str(word) for word in words)],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
            cwd=self.place,
            env=os.environ | ({"HOLDFAST_CRASH": crash} if crash else {}),
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def run(self, name: str, *extra: object, crash: str = "") -> Done:
        words: list[object] = [
            *("run", "agent.py", "--tasks", "tasks.jsonl", "--samples", SAMPLES, "--run", name),
            *("--journal", f"{name}.db", "--policy", self.engine.server.url, "--quiet"),
            *("--seed", 7, "--max-tokens", TOKENS, "--temperature", 1.0),
        ]
        if self.engine.named is not None:
            words += ["--dialect", self.engine.named]
        if self.engine.tokenizer is not None:
            words += ["--tokenizer", self.engine.tokenizer, "--renderer", "template"]
        return self.holdfast(*words, *extra, crash=crash)

    def killed_and_resumed(self, name: str, *extra: object) -> None:
        for plan in KILLS:
            assert self.run(name, *extra, crash=plan).code == -signal.SIGKILL
        done = self.run(name, *extra)
        assert done.code == 0, done.err

    def export(self, name: str) -> bytes:
        done = self.holdfast(
            *("export", name, "--what", "samples", "--out", f"{name}.jsonl"),
            *("--journal", f"{name}.db"),
        )
        assert done.code == 0, done.err
        return (self.place / f"{name}.jsonl").read_bytes()


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
    assert told["weight versions"].startswith("told" if can.tells_versions else "not told")
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
