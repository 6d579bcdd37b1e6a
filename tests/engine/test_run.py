"""`holdfast.run` given what it does not want: told at once, and nothing is recorded."""

import asyncio
from pathlib import Path

import pytest

import holdfast
from holdfast.journal.memory import MemoryJournal
from holdfast.policy.rendering.renderer import ByteRenderer
from support.rollout.stage import Oracle

TASKS = [{"id": "a", "prompt": "do a"}]


class Unasked(Oracle):
    """An endpoint that nobody may speak to before all is well."""

    async def check(self) -> None:
        raise AssertionError("it was asked")


async def solve(t: holdfast.Rollout) -> None: ...


def refused(**changes: object) -> str:
    journal = MemoryJournal()
    usual = {"tasks": TASKS, "policy": Unasked(), "journal": journal, "name": "r"}
    given = {**usual, "renderer": ByteRenderer(), **changes}

    async def begin() -> None:
        try:
            await holdfast.run(solve, **given)  # type: ignore[arg-type]
        finally:
            assert await journal.runs() == []

    with pytest.raises(holdfast.UsageError) as caught:
        asyncio.run(begin())
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"seed": "1"}, "seed must be a whole number, not '1'"),
        ({"seed": 1.5}, "seed must be a whole number, not 1.5"),
        ({"seed": True}, "seed must be a whole number, not True"),
        ({"seed": 10**30}, "seed must fit in 64 bits"),
        ({"samples": "4"}, "samples must be a whole number, not '4'"),
        ({"samples": 10**9}, "a task has at most 1,000,000 samples, not 1,000,000,000; lower"),
        (
            {"samples": 10**6, "tasks": [{"prompt": str(n)} for n in range(11)]},
            "are 11,000,000 trajectories, and a run has at most 10,000,000",
        ),
        ({"samples": 2, "group": holdfast.GroupPolicy(at_least=3)}, "at least 3 valid members"),
        ({"name": "a\nb"}, "a run's name has no control characters or line breaks"),
        ({"name": None}, "a run's name has 1 to 200 characters"),
        (
            {"journal": "x.db"},
            "journal is of type str, and no journal; for the one in a file, give",
        ),
        ({"journal": Path("x.db")}, "give holdfast.open_journal(PATH)"),
        ({"policy": "http://127.0.0.1:1"}, "policy is of type str, and no policy; for the engine"),
        ({"policy": None}, "give holdfast.EnginePolicy(URL, MODEL)"),
        ({"tasks": "good.jsonl"}, "read that with holdfast.records.task.read_tasks"),
        ({"tasks": [{"prompt": "a", "ground_truth": 2**64}]}, "task 1: ground_truth is an integer"),
        ({"sampling": {"max_tokens": 5}}, "sampling is a Sampling(…)"),
        ({"sampling": {}}, "sampling is a Sampling(…)"),
        ({"group": "drop"}, "group is a GroupPolicy(…)"),
        ({"settings": {"concurrency": 2}}, "settings is a Settings(…)"),
        ({"scorer": "score"}, "scorer is a function of one argument, not 'score'"),
    ],
)
def test_a_mistake_is_named_before_anything_is_asked_or_recorded(changes, why):
    assert why in refused(**changes)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"concurrency": "4"}, "concurrency must be a whole number, not '4'"),
        ({"concurrency": 0}, "concurrency must be 1 or more, not 0"),
        ({"max_retry": 1.5}, "max_retry must be a whole number, not 1.5"),
        ({"max_retry": -1}, "max_retry must be 0 or more, not -1"),
        ({"partial_tokens": None}, "partial_tokens must be a whole number, not None"),
        ({"lease_seconds": "30"}, "lease_seconds must be a number, not '30'"),
        ({"lease_seconds": float("nan")}, "lease_seconds must be longer than 0 seconds, not nan"),
        ({"attempt_deadline": 0}, "attempt_deadline must be longer than 0 seconds, not 0"),
        ({"run_deadline": -5}, "run_deadline must be longer than 0 seconds, not -5"),
        ({"grace": -1}, "grace must be 0 seconds or more, not -1"),
        ({"backoff": "1"}, "backoff must be a number, not '1'"),
        ({"scoring": 3}, r"scoring is a ScoringPolicy\(…\), not 3"),
    ],
)
def test_settings_of_other_types_are_refused(changes, why):
    with pytest.raises(holdfast.UsageError, match=f"^{why}"):
        holdfast.Settings(**changes)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"tries": "2"}, "a scorer's tries must be a whole number, not '2'"),
        ({"concurrency": 0}, "a scorer's concurrency must be 1 or more, not 0"),
        ({"timeout": None}, "a scorer's timeout must be a number, not None"),
    ],
)
def test_a_scoring_policy_of_other_types_is_refused(changes, why):
    with pytest.raises(holdfast.UsageError, match=f"^{why}"):
        holdfast.ScoringPolicy(**changes)


@pytest.mark.parametrize("url", ["postgres://me:secret@db/x", "sqlite:///x.db", "s3://bucket/x"])
def test_the_address_of_a_server_is_no_journal(tmp_path, monkeypatch, url):
    monkeypatch.chdir(tmp_path)
    for where in (url, Path(url)):
        for read_only in (False, True):
            with pytest.raises(holdfast.UsageError) as caught:
                holdfast.open_journal(where, read_only=read_only)
            assert "a journal is a file, like holdfast.db, or memory:; PostgreSQL" in str(
                caught.value
            )
            assert "secret" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["", None, 3])
def test_what_is_no_address_is_no_journal(where):
    with pytest.raises(holdfast.UsageError, match="a journal is the path of a file, or memory:"):
        holdfast.open_journal(where)


def test_a_colon_in_a_path_is_no_server(tmp_path):
    journal = holdfast.open_journal(tmp_path / "a:b" / "run:1.db")
    asyncio.run(journal.close())
    assert (tmp_path / "a:b" / "run:1.db").is_file()
