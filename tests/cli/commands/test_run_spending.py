"""Usage is recorded, shown and exported; limits on it stop a run, and a higher one goes on."""

import json

import pytest

from holdfast.records.exit_codes import Exit
from holdfast.testing import FakeEngine
from support.cli.shell import CommandLine

ONE_REPLY = """
async def solve(t):
    t.add(*t.task.messages)
    await t.generate()
"""
PRICES = '[models."{model}"]\nprompt = 1000\ncompletion = 2000\ncached = 500\n'


def spent(shell: CommandLine, run: str = "r") -> dict[str, int]:
    """By the report alone, which is a sum over records."""
    done = shell.holdfast("report", run, "--json")
    (used,) = json.loads(done.out)["usage"].values()
    return used


@pytest.fixture
def many(shell: CommandLine) -> CommandLine:
    shell.tasks(*(f"t{number}" for number in range(12)))
    return shell


def test_a_limit_stops_admission_and_a_higher_one_goes_on(many: CommandLine) -> None:
    done = many.run("--max-tokens-total", 150, "--concurrency", 2)
    assert done.code == Exit.SPENT, done.err
    used = spent(many)
    total = used["prompt_tokens"] + used["completion_tokens"]
    assert total >= 150
    line = next(line for line in done.err.splitlines() if "stopped" in line)
    assert "tokens are used: max-tokens-total (150) is reached; the same command with a higher" in (
        line
    )
    (advice,) = [line for line in done.err.splitlines() if line.startswith("to go on")]
    assert advice.startswith("to go on, with a higher limit: holdfast run agent.py ")
    assert "--max-tokens-total MORE" in advice
    assert many.engine.stats().in_flight == 0
    requests = many.engine.stats().requests
    again = many.run("--max-tokens-total", 150, "--concurrency", 2)
    assert again.code == Exit.SPENT
    assert many.engine.stats().requests == requests, "a resumed run has spent what it had spent"
    assert spent(many) == used
    higher = many.run("--max-tokens-total", 1_000_000)
    assert higher.code == Exit.OK, higher.err
    assert "12 trajectories: 12 COMPLETED" in higher.out


def test_what_is_in_flight_at_the_limit_becomes_durable(many: CommandLine) -> None:
    with FakeEngine(mean_length=10, delay=0.3) as slow:
        many.engine = slow
        done = many.run("--max-tokens-total", 1, "--concurrency", 4, "--grace", 0)
        assert done.code == Exit.SPENT
        # With no grace, a stop by a signal would have thrown the other three away.
        assert slow.stats().completions == slow.stats().requests
        turns = json.loads(many.holdfast("report", "r", "--json").out)["turns"]
        assert turns == slow.stats().completions


def test_a_limit_that_the_last_replies_reach_is_no_stop(shell: CommandLine) -> None:
    shell.write(
        "one.py", "async def solve(t):\n    t.add(*t.task.messages)\n    await t.generate()\n"
    )
    done = shell.run("--max-tokens-total", 1, rollout="one.py")
    assert done.code == Exit.OK, done.err
    assert "2 COMPLETED" in done.out


def test_money_stops_a_run_too(many: CommandLine) -> None:
    many.write("prices.toml", PRICES.format(model=many.engine.model))
    done = many.run("--max-cost", 0.1, "--price", "prices.toml", "--concurrency", 1)
    assert done.code == Exit.SPENT, done.err
    assert "USD are spent: max-cost (0.10) is reached" in done.err
    assert "  cost: 0.1" in done.out
    shown = many.holdfast("show", "r", "--price", "prices.toml", "--json")
    assert 0.1 <= json.loads(shown.out)["cost"]["amount"] < 0.4


def test_mistakes_are_found_before_anything_is_sampled(shell: CommandLine) -> None:
    shell.write("prices.toml", PRICES.format(model="another"))
    shell.write("bad.toml", "prompt = 1")
    for options, complaint in (
        (("--max-cost", 1), "max_cost needs the prices of the model: name their table with"),
        (("--max-cost", 1, "--price", "prices.toml"), "model 'fake' has no price"),
        (("--price", "bad.toml"), "unknown field `prompt`"),
        (("--price", "none.toml"), "none.toml cannot be read: No such file"),
        (("--max-cost", 0), "must be above 0"),
        (("--max-tokens-total", 0), "must be 1 or more"),
        (("--max-tokens-total", "many"), "wants a whole number"),
    ):
        done = shell.run(*options)
        assert done.code == Exit.USAGE
        assert complaint in done.err
        assert done.err.count("\n") == 1, done.err
    assert shell.engine.stats().requests == 0


def test_an_environment_variable_names_the_table(shell: CommandLine) -> None:
    table = shell.write("prices.toml", PRICES.format(model="fake"))
    done = shell.run(env={"HOLDFAST_PRICES": str(table)})
    assert "  cost: " in done.out
    assert "  cost: " not in shell.holdfast("report", "r").out


# --- engines without tokens


@pytest.fixture
def chat(shell: CommandLine):
    with FakeEngine(mean_length=10, dialect="chat", counts="details") as engine:
        shell.engine = engine
        yield shell


def test_what_a_chat_says_is_recorded_shown_and_exported(chat: CommandLine) -> None:
    done = chat.run("--dialect", "chat")
    assert done.code == 0, done.err
    assert " 0 sampled tokens" not in done.out
    used = spent(chat)
    assert used["completion_tokens"] == chat.engine.stats().tokens
    assert 0 < used["cached_tokens"] < used["prompt_tokens"]
    assert 0 < used["reasoning_tokens"] < used["completion_tokens"]
    assert f"{used['completion_tokens']:,} of replies ({used['reasoning_tokens']:,} reasoning)" in (
        done.out
    )
    first = chat.holdfast("show", "r", "sum/0").out
    assert "cached)" in first
    assert ", 0 sampled tokens" not in first
    rows = [json.loads(line) for line in chat.export("rows").splitlines()]
    assert (
        sum(row["execution_metadata"]["usage"]["completion_tokens"] for row in rows)
        == (used["completion_tokens"])
    )
    trajectories = [json.loads(line) for line in chat.export("trajectories").splitlines()]
    assert (
        sum(row["usage"]["fake"]["prompt_tokens"] for row in trajectories)
        == (used["prompt_tokens"])
    )


def test_an_engine_that_counts_nothing_is_not_said_to_have_sampled_nothing(
    shell: CommandLine,
) -> None:
    with FakeEngine(mean_length=10, dialect="chat", counts="nothing") as engine:
        shell.engine = engine
        done = shell.run("--dialect", "chat")
        assert done.code == 0, done.err
        assert "4 turns, the tokens of 4 turns not counted by the engine;" in done.out
        assert "tokens not counted by the engine" in shell.holdfast("show", "r", "sum").out
        limited = shell.run("--dialect", "chat", "--max-tokens-total", 9, run="s")
        assert limited.code == Exit.STOPPED
        assert "does not say how many tokens it sampled" in limited.err
        (advice,) = [line for line in limited.err.splitlines() if line.startswith("to go on")]
        assert advice.startswith("to go on: holdfast run agent.py ")
        assert "--max-tokens-total" not in advice


def test_costs_are_exported(shell: CommandLine) -> None:
    shell.write("prices.toml", PRICES.format(model="fake"))
    shell.finished_run()
    rows = [
        json.loads(line) for line in shell.export("rows", "--price", "prices.toml").splitlines()
    ]
    for row in rows:
        metrics = row["execution_metadata"]["cost_metrics"]
        usage = row["execution_metadata"]["usage"]
        assert metrics["input_cost"] == pytest.approx(usage["prompt_tokens"] / 1000)
        assert metrics["total_cost_dollar"] == pytest.approx(
            metrics["input_cost"] + metrics["output_cost"]
        )
    exported = shell.export("trajectories", "--price", "prices.toml").splitlines()
    assert all(json.loads(line)["cost"] > 0 for line in exported)
    for sample in shell.export("samples").splitlines():
        fields = json.loads(sample)
        assert fields["completion_tokens"] == sum(fields["loss_mask"])
        assert fields["prompt_tokens"] > 0


JUDGED = """
import holdfast


async def solve(t):
    t.add(*t.task.messages)
    await t.generate(max_tokens=4)


judge = holdfast.Judge("Is it kind?", policy="{url}", cache=None)
"""


def test_verdicts_in_flight_at_a_limit_go_by_concurrency_and_are_in_the_last_line(
    shell: CommandLine,
) -> None:
    shell.tasks(*(f"t{number}" for number in range(40)))
    with FakeEngine(replies=['{"reason": "kind", "score": 9}'], delay=0.3) as judging:
        shell.write("judged.py", JUDGED.format(url=judging.url))
        limits = ("--max-tokens-total", 300, "--concurrency", 2, "--scorer", "judge")
        done = shell.run(*limits, rollout="judged.py")
        assert done.code == Exit.SPENT, done.err
        assert judging.stats().completions <= 4, "two at a time, until their costs are known"
    used = json.loads(shell.holdfast("report", "r", "--json").out)["usage"].values()
    total = sum(each["prompt_tokens"] + each["completion_tokens"] for each in used)
    assert f"stopped: {total:,} tokens are used: max-tokens-total (300) is reached" in done.err


def test_what_was_sampled_for_removed_tasks_is_in_usage_and_cost(shell: CommandLine) -> None:
    shell.write("prices.toml", PRICES.format(model="fake"))
    shell.finished_run()
    before = spent(shell)
    shell.tasks("sum")
    done = shell.run("--accept-changes", "--price", "prices.toml")
    assert done.code == 0, done.err
    assert "run r: 1 trajectory: 1 COMPLETED" in done.out
    assert spent(shell) == before
    cost = before["prompt_tokens"] / 1000 + before["completion_tokens"] / 500
    assert f"  cost: {cost:.3f} USD (with 1 trajectory of tasks that were removed)" in done.out
