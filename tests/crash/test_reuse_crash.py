"""SIGKILL while a run takes over what an older one sampled: nothing is lost, or sampled again."""

import json
import random
from pathlib import Path

import pytest

from holdfast.journal.damage.check import check
from holdfast.testing import FakeEngine
from support.cli.shell import CommandLine, Done, end, start
from support.crash.killable_run import SIGKILLED
from support.exhaustive import points

AGENT = """
async def solve(t):
    t.add(*t.task.messages)
    await t.generate(max_tokens=8)


def score(trajectory):
    return float(trajectory.task.ground_truth)
"""
POINTS = [
    "engine.reused:1", "engine.reused:3", "before:2", "after:2", "before:6", "after:6",
    "engine.finished:2", "engine.admitted:5",
]  # fmt: skip
EDITS = 4


class Attempts(CommandLine):
    """A user who gives no names. One trajectory at a time: a kill loses at most one reply."""

    def __init__(self, place: Path, engine: FakeEngine):
        super().__init__(place, engine)
        self.write("agent.py", AGENT)
        self.rows: dict[str, int] = {f"t{n}": n for n in range(4)}

    def give(self, crash: str = "") -> Done:
        lines = [
            json.dumps({"id": name, "prompt": f"do {name}", "ground_truth": truth})
            for name, truth in self.rows.items()
        ]
        self.write("tasks.jsonl", "\n".join(lines))
        arguments = (
            "run", "agent.py", "--tasks", "tasks.jsonl", "--policy", self.engine.url,
            "--model", self.engine.model, "--samples", 2, "--concurrency", 1,
        )  # fmt: skip
        return end(
            start(*arguments, cwd=self.place, env={"HOLDFAST_CRASH": crash} if crash else {})
        )

    def replies(self, run: str) -> dict[str, str]:
        rows = map(json.loads, self.export("trajectories", run=run).splitlines())
        return {f"{row['task']}/{row['sample']}": json.dumps(row["messages"]) for row in rows}

    def requests(self) -> int:
        return int(self.engine.stats().requests)


@pytest.mark.parametrize("point", POINTS[: points(3, len(POINTS))])
def test_a_kill_in_the_middle_changes_nothing(tmp_path: Path, point: str) -> None:
    with FakeEngine() as engine:
        user = Attempts(tmp_path, engine)
        assert user.give().code == 0
        first = user.replies("agent-1")
        user.rows = {"t9": 9, "t2": 50, **user.rows}
        number = user.requests()
        assert user.give(point).code == SIGKILLED
        assert not check(user.journal).findings
        done = user.give()
        assert done.code == 0, done.err
        assert number + 2 <= user.requests() <= number + 3, "new is t9; a kill loses one reply"
        second = user.replies("agent-2")
        assert {key: second[key] for key in first} == first
        assert "8 reused from agent-1" in done.out
        assert not check(user.journal).findings
        assert user.give().code == 0
        assert "agent-3" not in user.holdfast("runs", "--names").out


def test_random_edits_and_kills_sample_what_no_run_has(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    kinds = ("engine.reused", "before", "after", "engine.finished")
    known: dict[str, str] = {}
    with FakeEngine() as engine:
        user = Attempts(tmp_path, engine)
        for number in range(points(EDITS, 10 * EDITS)):
            names = [*user.rows, f"new{number}"]
            kept = chance.sample(names, chance.randint(2, len(names)))
            user.rows = {name: user.rows.get(name, 7) + chance.randrange(2) for name in kept}
            before, kills = user.requests(), 0
            while (done := user.give(f"{chance.choice(kinds)}:{chance.randint(1, 9)}")).code:
                assert done.code == SIGKILLED, done.err
                assert not check(user.journal).findings
                kills += 1
                if kills == 3:
                    assert user.give().code == 0
                    break
            new = [f"{name}/{n}" for name in kept for n in (0, 1) if f"{name}/{n}" not in known]
            assert len(new) <= user.requests() - before <= len(new) + kills
            run = user.holdfast("runs", "--names").out.splitlines()[-1]
            replies = user.replies(run)
            if replies.keys() == {f"{name}/{n}" for name in kept for n in (0, 1)}:
                for key, reply in replies.items():
                    assert known.setdefault(key, reply) == reply
