"""Token-level resume: drivers and engines that die in the middle of a reply."""

import asyncio
import json
import random
import signal
import time

import pytest

from holdfast.journal import open_journal
from holdfast.journal.damage.check import check
from holdfast.records.encoding.tokens import count
from holdfast.records.history import History
from holdfast.testing import FakeEngine, Fault, FaultKind
from support.crash.command import export_samples, finished, holdfast, let_go, run_words, write_tasks
from support.crash.killable_run import (
    FAULTS,
    KillableRun,
    kill_and_resume,
    kill_in_part,
    settle,
    undisturbed,
)
from support.exhaustive import points

FAST_POINTS = points(4, 10)
EVERY = 4
"""Tokens between two drafts."""
MISBEHAVING = (
    *FAULTS,
    Fault(FaultKind.STREAM_CUT, matching="pay1/", after=5),
    Fault(FaultKind.STREAM_ERROR, matching="build1/", after=7),
    Fault(FaultKind.STREAM_END, matching="long0/0/", after=3),
    Fault(FaultKind.ABORT, matching="long0/1/"),
    Fault(FaultKind.WRONG_MODEL, matching="read1/2/"),
    Fault(FaultKind.LENGTH_MISMATCH, matching="long0/2/"),
    Fault(FaultKind.WRONG_PROMPT, matching="bug0/0/"),
    # No DUPLICATE_CHUNK: that shows when the stream tells its count, at its end. A kill before
    # that leaves nothing to see it by (docs/guarantees.md).
    Fault(FaultKind.OVERLONG, matching="bug0/2/"),
)


@pytest.fixture(scope="module")
def killable(tmp_path_factory):
    folder = tmp_path_factory.mktemp("streams")
    with KillableRun(folder, partial_tokens=EVERY, faults=MISBEHAVING) as killable:
        yield killable


def test_a_run_in_drafts_gives_the_bytes_of_one_in_whole_replies(killable, baseline, tmp_path):
    with KillableRun(tmp_path, faults=()) as whole:
        assert undisturbed(whole).samples == baseline.samples


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("part", range(FAST_POINTS))
def test_a_kill_at_a_draft_or_any_other_record_changes_nothing(killable, baseline, when, part):
    kill_in_part(killable, baseline, when, part, parts=FAST_POINTS)


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_at_every_draft_and_record_changes_nothing(killable, baseline, when):
    boundary = 1
    while kill_and_resume(killable, baseline, f"{when}:{boundary}"):
        boundary += 1
    assert boundary > 1
    print(f"{boundary - 1} kills {when} a commit, over {baseline.records} records")


# --- whole replies of an engine that begins a seed's noise anew with each request, as vLLM does

ABORTED = (
    Fault(FaultKind.ABORT, matching="read0/", after=3, times=2),
    Fault(FaultKind.ABORT, matching="read1/", after=1),
    Fault(FaultKind.ABORT, matching="pay"),
    Fault(FaultKind.STREAM_CUT, matching="build"),
    Fault(FaultKind.ABORT, matching="long0/"),
)
SEEDED_POINTS = points(2, 4)


@pytest.fixture(scope="module")
def seeded(tmp_path_factory):
    with KillableRun(
        tmp_path_factory.mktemp("seeded"), seeds="request", faults=ABORTED
    ) as killable:
        yield killable


@pytest.fixture(scope="module")
def seeded_baseline(seeded):
    return undisturbed(seeded)


def test_replies_that_are_aborted_under_a_seed_are_those_of_a_calm_engine(
    seeded, seeded_baseline, tmp_path
):
    with KillableRun(tmp_path, seeds="request", faults=()) as calm:
        assert undisturbed(calm).samples == seeded_baseline.samples


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("part", range(SEEDED_POINTS))
def test_a_kill_among_aborted_replies_changes_nothing(seeded, seeded_baseline, when, part):
    kill_in_part(seeded, seeded_baseline, when, part, parts=SEEDED_POINTS)


# --- through the command line, with long replies

REPLY = 400


@pytest.fixture
def slow_engine():
    """Replies of a few seconds, so that most of them are under way at any moment."""
    with FakeEngine(mean_length=0, token_delay=0.004) as engine:
        yield engine


def words_for(place, engine, tasks, *extra):
    return run_words(
        place, engine, tasks, "--samples", 2, "--max-tokens", REPLY, "--partial-tokens", 32,
        "--concurrency", 8, *extra, rollout="one_reply.py",
    )  # fmt: skip


def expected_of(tmp_path, engine, tasks) -> bytes:
    place = tmp_path / "undisturbed"
    place.mkdir()
    code, _, err = finished(holdfast(*words_for(place, engine, tasks)))
    assert code == 0, err
    return export_samples(place)


def durable_tokens(place) -> int:
    async def count_tokens() -> int:
        journal, tokens = open_journal(place / "journal.db", read_only=True), 0
        try:
            async for _, records in journal.histories(await journal.find_run("crash")):
                history = History(records)
                for step in (*history.generations, *history.drafts.values()):
                    tokens += count(step.ids)
        finally:
            await journal.close()
        return tokens

    return asyncio.run(count_tokens())


def test_a_driver_killed_in_mid_stream_goes_on_from_its_last_durable_token(tmp_path, slow_engine):
    engine, chance = slow_engine, random.Random(seed := random.randrange(2**32))
    print(f"seed {seed}")
    tasks = write_tasks(tmp_path / "tasks.jsonl", [f"read{i}" for i in range(8)])
    expected = expected_of(tmp_path, engine, tasks)
    produced = engine.stats().tokens
    engine.reset()
    arguments, kills = words_for(tmp_path, engine, tasks), 0
    for _ in range(4):
        process = holdfast(*arguments)
        goal = engine.stats().tokens + chance.randrange(600, 1200)
        while process.poll() is None and engine.stats().tokens < goal:
            time.sleep(0.01)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        finished(process)
    settle(engine)
    durable, sampled = durable_tokens(tmp_path), engine.stats().tokens
    assert durable >= kills * 32
    code, _, err = finished(holdfast(*arguments))
    assert code == 0, err
    assert export_samples(tmp_path) == expected
    assert not check(tmp_path / "journal.db").findings
    assert kills >= 2
    # The last life sampled what the kills before it had left, and nothing else.
    assert engine.stats().tokens - sampled == produced - durable


def test_an_engine_killed_in_mid_stream_costs_no_durable_token(tmp_path, slow_engine):
    engine = slow_engine
    tasks = write_tasks(tmp_path / "tasks.jsonl", [f"read{i}" for i in range(8)])
    expected = expected_of(tmp_path, engine, tasks)
    engine.reset()
    process = holdfast(*words_for(tmp_path, engine, tasks))
    for goal in (800, 800):
        while process.poll() is None and engine.stats().tokens < goal:
            time.sleep(0.01)
        engine.kill()
        time.sleep(0.5)
        engine.start()
    code, out, err = finished(process)
    assert code == 0, err
    assert "FAILED" not in out
    assert export_samples(tmp_path) == expected


def test_a_reply_goes_on_with_another_replica_when_its_own_dies(tmp_path):
    with (
        FakeEngine(mean_length=0, token_delay=0.004) as first,
        FakeEngine(mean_length=0, token_delay=0.004) as second,
    ):
        tasks = write_tasks(tmp_path / "tasks.jsonl", [f"read{i}" for i in range(8)])
        expected = expected_of(tmp_path, second, tasks)
        second.reset()
        for engine in (first, second):
            engine.set_faults(Fault(FaultKind.HOLD, after=350))
        arguments = words_for(tmp_path, first, tasks, "--policy", second.url)
        process = holdfast(*arguments)
        while not first.stats().held or not second.stats().held:
            assert process.poll() is None
            time.sleep(0.01)
        first.kill()
        let_go(second, process)
        code, out, err = finished(process)
        assert code == 0, err
        assert "FAILED" not in out
    assert export_samples(tmp_path) == expected


def test_weights_that_change_in_mid_reply_are_told_token_by_token(tmp_path):
    with FakeEngine(mean_length=0, token_delay=0.004, dialect="vllm-scale-out") as engine:
        tasks = write_tasks(tmp_path / "tasks.jsonl", ["read0"])
        engine.set_faults(Fault(FaultKind.HOLD, after=200))
        process = holdfast(
            *run_words(
                tmp_path,
                engine,
                tasks,
                "--max-tokens",
                REPLY,
                "--partial-tokens",
                32,
                rollout="one_reply.py",
            )
        )
        while not engine.stats().held:
            assert process.poll() is None
            time.sleep(0.01)
        engine.update_weights("v2")
        engine.release()
        code, _, err = finished(process)
        assert code == 0, err
    (row,) = map(json.loads, export_samples(tmp_path).splitlines())
    (items, two) = row["version_spans"]
    assert (items[0], two[0]) == ("default", "v2")
    assert items[2] == two[1]
    assert two[2] - items[1] == REPLY
