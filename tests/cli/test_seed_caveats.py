"""Where equal bytes cannot be kept, it is said where they are promised."""

import pytest

import holdfast
from holdfast.engine.settings import Settings
from holdfast.testing import FakeEngine
from support.cli.shell import CommandLine

WHOLE_REQUESTS = "hold for whole requests"
IN_PARTS = ("--partial-tokens", 4)


@pytest.fixture(scope="module")
def seeded():
    """As vLLM: a seed's noise begins anew with each request."""
    with FakeEngine(mean_length=10, seeds="request") as engine:
        yield engine


def warnings_of(shell, *extra):
    return [line for line in shell.finished_run(*extra).err.splitlines() if "holdfast: " in line]


def test_a_run_in_parts_says_that_its_seeds_do_not_reach_beyond_a_seam(tmp_path, seeded):
    (line,) = warnings_of(CommandLine(tmp_path, seeded), *IN_PARTS)
    assert WHOLE_REQUESTS in line
    assert "--partial-tokens" in line


def test_whole_replies_keep_the_promise_and_nothing_is_said(tmp_path, seeded):
    assert warnings_of(CommandLine(tmp_path, seeded)) == []


def test_nothing_is_said_of_an_engine_whose_seeds_name_positions(shell):
    assert warnings_of(shell, *IN_PARTS) == []


def test_without_a_seed_there_is_nothing_to_say(tmp_path, seeded):
    shell = CommandLine(tmp_path, seeded)
    arguments = [word for word in shell.arguments(*IN_PARTS) if word not in ("--seed", 7)]
    assert WHOLE_REQUESTS not in shell.holdfast(*arguments).err


def test_an_engine_that_takes_no_seeds_is_named(tmp_path):
    with FakeEngine(mean_length=10, seeds="request", dialect="sglang", describes=False) as engine:
        (line,) = warnings_of(CommandLine(tmp_path, engine), "--renderer", "bytes")
    assert f"{engine.url} takes no seeds" in line
    assert "--enable-deterministic-inference" in line


async def test_from_python_it_is_told_to_whoever_listens(seeded, tmp_path):
    lines = []

    async def rollout(t):
        t.add(*t.task.messages)
        await t.generate(max_tokens=4)

    journal = holdfast.open_journal(tmp_path / "holdfast.db")
    policy = holdfast.EnginePolicy(seeded.url, seeded.model, notify=lines.append)
    try:
        await holdfast.run(
            rollout, tasks=[{"id": "a", "prompt": "b"}], policy=policy, journal=journal,
            name="r", seed=1, settings=Settings(partial_tokens=4),
        )  # fmt: skip
    finally:
        await policy.aclose()
        await journal.close()
    (line,) = lines
    assert WHOLE_REQUESTS in line


def test_the_help_of_export_names_the_exceptions(shell):
    done = shell.holdfast("export", "--help")
    assert "byte for byte" in done.out
    assert "--partial-tokens" in done.out
    assert "at_most_once" in done.out
