"""SIGKILL at record boundaries of a run with a limit: what was spent is never forgotten."""

import json
import signal

import pytest

from holdfast.records.exit_codes import Exit
from holdfast.testing import FakeEngine
from support.cli.shell import Lab
from support.exhaustive import points

LIMIT = 400
ONE_REPLY = 150
"""More tokens than any prompt and reply of the rollout have together."""
KILLS = points(4, 40)


@pytest.fixture(scope="module")
def engine():
    with FakeEngine(mean_length=10) as engine:
        yield engine


def run(lab: Lab, crash: str = "") -> int:
    env = {"HOLDFAST_CRASH": crash} if crash else {}
    return lab.run("--max-tokens-total", LIMIT, "--concurrency", 2, env=env).code


def spent(lab: Lab) -> int:
    usage = json.loads(lab.holdfast("report", "r", "--json").out)["usage"]
    return sum(used["prompt_tokens"] + used["completion_tokens"] for used in usage.values())


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kill", range(KILLS))
def test_a_kill_at_a_record_forgets_nothing_that_was_spent(tmp_path, engine, when, kill):
    lab = Lab(tmp_path, engine)
    lab.tasks(*(f"t{number}" for number in range(20)))
    place = 4 + kill * 24 // KILLS  # The run is made, joined and claimed by then.
    code = run(lab, f"{when}:{place}")
    assert code in (-signal.SIGKILL, Exit.SPENT)
    before = spent(lab)
    assert run(lab) == Exit.SPENT
    assert before <= spent(lab)
    assert LIMIT <= spent(lab) < LIMIT + 2 * ONE_REPLY
    engine.reset()
    assert run(lab) == Exit.SPENT
    assert engine.stats().requests == 0, "it had spent what it had spent"
