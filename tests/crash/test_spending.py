"""SIGKILL at record boundaries of a run with a limit: what was spent is never forgotten."""

import json
import signal

import pytest

from holdfast.records.exit_codes import Exit
from holdfast.testing import FakeEngine
from support.cli.shell import CommandLine
from support.exhaustive import points

LIMIT = 400
ONE_REPLY = 150
"""More tokens than any prompt and reply of the rollout have together."""
KILLS = points(4, 40)


@pytest.fixture(scope="module")
def engine():
    with FakeEngine(mean_length=10) as engine:
        yield engine


def run(shell: CommandLine, crash: str = "") -> int:
    env = {"HOLDFAST_CRASH": crash} if crash else {}
    return shell.run("--max-tokens-total", LIMIT, "--concurrency", 2, env=env).code


def spent(shell: CommandLine) -> int:
    usage = json.loads(shell.holdfast("report", "r", "--json").out)["usage"]
    return sum(used["prompt_tokens"] + used["completion_tokens"] for used in usage.values())


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kill", range(KILLS))
def test_a_kill_at_a_record_forgets_nothing_that_was_spent(tmp_path, engine, when, kill):
    shell = CommandLine(tmp_path, engine)
    shell.tasks(*(f"t{number}" for number in range(20)))
    place = 4 + kill * 24 // KILLS  # The run is made, joined and claimed by then.
    code = run(shell, f"{when}:{place}")
    assert code in (-signal.SIGKILL, Exit.SPENT)
    before = spent(shell)
    assert run(shell) == Exit.SPENT
    assert before <= spent(shell)
    assert LIMIT <= spent(shell) < LIMIT + 2 * ONE_REPLY
    engine.reset()
    assert run(shell) == Exit.SPENT
    assert engine.stats().requests == 0, "it had spent what it had spent"
