"""SIGKILL at every record of a run of forks: nothing is lost, or sampled again."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.journal.damage.check import check
from holdfast.testing import FakeEngine
from support.cli.shell import CommandLine, Done
from support.crash.killable_run import SIGKILLED
from support.exhaustive import points

AGENT = """
import holdfast


@holdfast.tool(contract="idempotent")
async def look_up(word: str, idempotency_key: str) -> str:
    with open("calls.txt", "a") as calls:
        calls.write(idempotency_key + "\\n")
    return f"{word} means {len(word)}"


async def solve(t: holdfast.Rollout) -> None:
    t.add(*t.task.messages)
    for _ in range(4):
        reply = await t.generate(max_tokens=12)
        answer = await t.tool(look_up.call(word=reply.text[:4]), look_up)
        t.add(f"so: {answer.content}")


def score(trajectory):
    return sum(len(turn.step.message.text) for turn in trajectory.turns) / 100
"""
PROGRAM = """
import json, os, sys, urllib.request

messages = [{"role": "user", "content": "begin"}]
for turn in range(4):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "any", "messages": messages, "max_tokens": 12}).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"],
         "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        messages.append(json.load(answer)["choices"][0]["message"])
    messages.append({"role": "user", "content": f"turn {turn}"})
"""
BLACK_BOX = f"""
import holdfast

solve = holdfast.BlackBoxRolloutProcessor([{sys.executable!r}, "-S", "program.py"])


def score(trajectory):
    return sum(len(turn.step.message.text) for turn in trajectory.turns) / 100
"""
AT = {"agent.py": "4", "black_box.py": "2.0.0"}
SAY = "Check the units."
SHARED = 2
"""Turns before the fork."""
TURNS = 4
SAMPLES = 2


class Forking(CommandLine):
    """A user with a finished run, and with its forks as an undisturbed run gives them."""

    def __init__(self, place: Path, engine: FakeEngine, rollout: str):
        place.mkdir()
        super().__init__(place, engine)
        self.rollout = rollout
        self.write("agent.py", AGENT)
        self.write("black_box.py", BLACK_BOX)
        self.write("program.py", PROGRAM)
        self.tasks("sum")
        self.run("--concurrency", 1, rollout=rollout)
        self.original = self.recorded()
        self.engine.reset()
        done = self.fork("undisturbed")
        assert done.code == 0, done.err
        self.requests = self.engine.stats().requests
        self.samples = self.export(run="undisturbed")

    def fork(self, name: str, *, crash: str = "") -> Done:
        env = {"HOLDFAST_CRASH": crash} if crash else {}
        return self.holdfast(
            "fork", "r", "sum/0", "--at", AT[self.rollout], "--say", SAY, "--samples", SAMPLES,
            "--run", name, env=env,
        )  # fmt: skip


@pytest.fixture(scope="module", params=sorted(AT))
def user(request: pytest.FixtureRequest, tmp_path_factory) -> Iterator[Forking]:
    with FakeEngine() as engine:
        yield Forking(tmp_path_factory.mktemp("forks") / "user", engine, request.param)


def test_an_undisturbed_fork_samples_what_comes_after_its_turn(user: Forking) -> None:
    assert user.requests == SAMPLES * (TURNS - SHARED)
    assert user.samples.count(b"\n") == SAMPLES
    said = json.loads(user.export("trajectories", run="undisturbed").splitlines()[0])["messages"]
    contents = [message["content"] for message in said]
    assert contents.count(SAY) == 1
    assert contents.index(SAY) < len(contents) - 2
    assert user.recorded()["records"][: len(user.original["records"])] == user.original["records"]


def test_a_kill_at_every_record_of_a_fork_changes_nothing(user: Forking) -> None:
    """Each kill strikes later than the one before, until none strikes any more."""
    number, step = 0, points(6, 1)
    while True:
        number += step
        killed = [_kill(user, f"{when}:{number}") for when in ("before", "after")]
        if not any(killed):
            break
    assert number > 6, "there were records at which a kill struck"


@pytest.mark.parametrize("number", range(1, SAMPLES + 1))
def test_a_kill_after_the_beginning_was_copied_changes_nothing(user: Forking, number: int) -> None:
    assert _kill(user, f"engine.reused:{number}")


def _kill(user: Forking, plan: str) -> bool:
    """Kills a fork at this place and resumes it. Returns whether the kill struck."""
    name = plan.replace(":", "-")
    user.engine.reset()
    code = user.fork(name, crash=plan).code
    assert code in (0, SIGKILLED)
    assert not check(user.journal).findings
    if code:
        resumed = user.holdfast("resume", name)
        if "there is no run" in resumed.err:
            resumed = user.fork(name)
        assert resumed.code == 0, resumed.err
    assert user.export(run=name) == user.samples
    lost = user.engine.stats().requests - user.requests
    assert 0 <= lost <= SAMPLES, "a kill loses the replies in flight, and none before the turn"
    recorded = user.recorded()
    for table in ("records", "trajectories", "tasks"):
        assert recorded[table][: len(user.original[table])] == user.original[table]
    return code == SIGKILLED
