"""Scoring: its own durable phase. A scorer fails its own trajectory only, never a rollout."""

import asyncio
import math
import subprocess
import sys
import threading

import pytest

import holdfast
from holdfast.engine.scoring.scorer import Score, Scorer, group_scorer
from holdfast.engine.settings import ScoringPolicy
from holdfast.journal import open_journal
from holdfast.records.encoding import codec
from holdfast.records.errors import UsageError
from holdfast.records.step import Scored
from support.engine.local_run import LocalRun, turn
from support.hostile_errors import NoAttributes, NoClass
from support.journal.faulty_journal import FaultyJournal
from support.paths import TESTS


async def one_turn(t):
    await turn(t)
    return 0.25


def sync_scorer(view):
    return Score(len(view.reply), {"letters": len(view.reply)}, {"why": "counted"})


async def async_scorer(view):
    await asyncio.sleep(0)
    return len(view.reply)


class AsyncObject:
    async def __call__(self, view):
        return len(view.reply)


@pytest.mark.parametrize("scorer", [sync_scorer, async_scorer, AsyncObject()])
def test_a_pointwise_scorer_of_any_kind_settles_each_trajectory(scorer):
    local = LocalRun("a", samples=2)
    local.run(one_turn, scorer)
    assert [row["reward"] for row in local.rows()] == [len("re run/a/0/0"), len("re run/a/1/0")]
    assert set(local.statuses().values()) == {("COMPLETED", True)}


def test_a_scorer_s_explanation_is_kept():
    local = LocalRun()
    local.run(one_turn, sync_scorer)
    scored = local.history().scored
    assert (scored.scorer, scored.metrics, scored.reasons) == (
        "sync_scorer",
        {"letters": 12.0},
        {"why": "counted"},
    )


def test_a_scorer_that_raises_once_is_asked_again():
    trouble = iter([RuntimeError("flake")])

    def flaky(view):
        for error in trouble:
            raise error
        return 1.0

    local = LocalRun()
    local.run(one_turn, flaky)
    history = local.history()
    assert (history.reward, len(history.scoring_failures)) == (1.0, 1)
    assert not history.failures


class Unreadable(Exception):
    def __str__(self):
        raise ValueError("no words")


async def cancelled(view):
    raise asyncio.CancelledError


async def base_group(view):
    raise BaseExceptionGroup("all", [KeyboardInterrupt()])


def raising(error):
    def scorer(view):
        raise error

    return scorer


async def exits(view):
    raise SystemExit(3)


class Several:
    """Like an array of two numbers: it has a __float__, which raises."""

    def __float__(self):
        raise TypeError("only arrays of one element can be converted to numbers")


BAD = {
    "raises": (raising(KeyError("always")), "KeyError"),
    "exits in a thread": (raising(SystemExit(3)), "ExitCalled"),
    "exits on the loop": (exits, "ExitCalled"),
    "cancels": (cancelled, "ExitCalled"),
    "base group": (base_group, "ExitCalled"),
    "unreadable": (raising(Unreadable()), "Unprintable"),
    "no attributes": (raising(NoAttributes()), "Unprintable"),
    "no class": (raising(NoClass()), "Unprintable"),
    "nan": (lambda view: math.nan, "NotAScore"),
    "text": (lambda view: "good", "NotAScore"),
    "bad reward": (lambda view: Score("good"), "NotAScore"),
    "bad metric": (lambda view: Score(1.0, {"a": "x"}), "NotAScore"),
    "no metrics": (lambda view: Score(1.0, None), "NotAScore"),
    "too large": (lambda view: 10**400, "NotAScore"),
    "several numbers": (lambda view: Several(), "NotAScore"),
}


@pytest.mark.parametrize("how", BAD)
def test_a_scorer_that_always_fails_fails_its_own_trajectory_and_causes_no_rollout(how):
    bad, kind = BAD[how]

    def scorer(view):
        return bad(view) if view.key.sample == 1 else 1.0

    local = LocalRun("a", samples=3)
    ending = local.run(one_turn, scorer, scoring=ScoringPolicy(tries=2))
    assert (ending.stopped, ending.fatal) == ("", None)
    assert local.statuses()["a/1"] == ("FAILED", True)
    assert {local.statuses()[name] for name in ("a/0", "a/2")} == {("COMPLETED", True)}
    history = local.history("a/1")
    assert [failure.type for failure in history.scoring_failures] == [kind, kind]
    assert {failure.phase for failure in history.scoring_failures} == {"scoring"}
    assert history.reward is None, "not even the rollout's own"
    assert len(local.policy.requests) == 3
    assert len(history.attempts) == 1


def test_reasons_that_cannot_be_encoded_are_kept_readable():
    local = LocalRun()
    local.run(one_turn, lambda view: Score(1.0, reasons={"why": "half \ud800"}))
    assert local.history().scored.reasons == {"why": "half \\ud800"}


def test_a_hanging_scorer_of_either_kind_fails_by_its_deadline():
    release = threading.Event()

    def blocks(view):
        release.wait(60)

    async def sleeps(view):
        await asyncio.sleep(60)

    try:
        for scorer in (blocks, sleeps):
            local = LocalRun()
            local.run(one_turn, scorer, scoring=ScoringPolicy(tries=1, timeout=0.03))
            (failure,) = local.history().scoring_failures
            assert (failure.type, failure.phase) == ("ScorerTimeout", "scoring")
            assert "File " not in failure.traceback, "no line of ours explains it"
            assert local.statuses() == {"a/0": ("FAILED", True)}
    finally:
        release.set()


def test_the_process_can_exit_while_a_scorer_hangs():
    script = f"""
import sys, threading
sys.path.insert(0, {str(TESTS)!r})
from support.engine.local_run import LocalRun, turn
from holdfast.engine.settings import ScoringPolicy
local = LocalRun()
local.run(turn, lambda view: threading.Event().wait(), scoring=ScoringPolicy(tries=1, timeout=0.01))
print(local.statuses())
"""
    # `turn` returns a Reply, which is not a reward: the rollout has to return None.
    script = script.replace("local.run(turn,", "async def go(t): await turn(t)\nlocal.run(go,")
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert "FAILED" in done.stdout, done.stderr
    assert done.returncode == 0


def test_a_scorer_s_own_timeout_error_is_not_taken_for_its_deadline():
    local = LocalRun()
    local.run(one_turn, raising(TimeoutError("a socket")), scoring=ScoringPolicy(tries=1))
    assert local.history().scoring_failures[0].type == "TimeoutError"


def test_a_synchronous_scorer_does_not_block_the_loop_and_overlaps_with_rollouts():
    """Each waits for the other: the scorer of the first for the second's rollout."""
    second_runs = threading.Event()

    async def rollout(t):
        if t.key.task == "b":
            second_runs.set()
        await turn(t)

    def scorer(view):
        assert second_runs.wait(60), "the loop was blocked, or scoring came last"
        return 1.0

    local = LocalRun("a", "b")
    local.run(rollout, scorer, concurrency=1, scoring=ScoringPolicy(tries=1))
    assert set(local.statuses().values()) == {("COMPLETED", True)}


def test_no_more_scorers_run_at_once_than_allowed():
    running, most, reached = 0, 0, asyncio.Event()

    async def scorer(view):
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        if running == 2:
            reached.set()
        await asyncio.wait_for(reached.wait(), 60)
        await asyncio.sleep(0.005)
        running -= 1
        return 1.0

    LocalRun(*"abcdef").run(one_turn, scorer, scoring=ScoringPolicy(concurrency=2))
    assert most == 2


def test_what_is_finished_but_not_scored_is_only_scored_on_resume(tmp_path):
    def score(view):
        return 2.0

    async def main():
        journal = open_journal(tmp_path / "journal.db")
        try:
            local = LocalRun("a", samples=2, journal=journal)

            scoring = []

            async def stops(view):
                scoring.append(view)
                if len(scoring) == 2:
                    local.stop.request("in the middle of scoring")
                await asyncio.sleep(3600)

            await local.work(one_turn, stops, grace=0.02)
            finished = [history.finished for history in (await local._histories()).values()]
            count = len(local.policy.requests)
            await local.work(one_turn, score)
            return finished, count, len(local.policy.requests), await local._histories()
        finally:
            await journal.close()

    finished, before, after, histories = asyncio.run(main())
    assert all(finished)
    assert before == after == 2
    assert [history.reward for history in histories.values()] == [2.0, 2.0]
    assert [len(history.attempts) for history in histories.values()] == [1, 1]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_what_was_finished_under_a_scorer_that_is_gone_is_settled_without_one(kind, tmp_path):
    journal = open_journal(tmp_path / "journal.db") if kind == "sqlite" else None
    local = LocalRun(journal=journal)

    async def stops(view):
        local.stop.request("in the middle of scoring")
        await asyncio.sleep(60)

    await local.work(one_turn, stops, grace=0.02)
    await local.work(one_turn)
    run = await local.journal.find_run("run")
    listed = await local.journal.trajectories(run)
    await local.journal.close()
    assert ([(row.status.name, row.settled) for row in listed], len(local.policy.requests)) == (
        [("COMPLETED", True)],
        1,
    )


def test_a_scorer_s_failures_count_across_processes():
    local = LocalRun()

    async def fails_then_stops(view):
        if local.history_failures:
            local.stop.request("now")
            await asyncio.sleep(60)
        local.history_failures.append(1)
        raise KeyError("first")

    local.history_failures = []
    local.run(one_turn, fails_then_stops, grace=0.02, scoring=ScoringPolicy(tries=2))
    assert len(local.history().scoring_failures) == 1
    local.run(one_turn, raising(KeyError("second")), scoring=ScoringPolicy(tries=2))
    assert [scoring_failure.attempt for scoring_failure in local.history().scoring_failures] == [
        1,
        2,
    ]


# --- groups


def test_a_group_scorer_sees_each_group_once_in_sample_order():
    seen = []

    @group_scorer
    def rank(views):
        seen.append([str(view.key) for view in views])
        return list(range(len(views)))

    async def rollout(t):
        await asyncio.sleep(0.01 * (3 - t.key.sample))
        await turn(t)

    local = LocalRun("a", "b", samples=3)
    local.run(rollout, rank)
    assert sorted(seen) == [[f"run/{name}/{i}" for i in range(3)] for name in "ab"]
    assert [row["reward"] for row in local.rows()] == [0.0, 1.0, 2.0] * 2


def test_a_group_scorer_sees_the_valid_members_only():
    seen = []

    @group_scorer
    async def rank(views):
        seen.append([view.key.sample for view in views])
        return [Score(1.0)] * len(views)

    async def rollout(t):
        if t.key.sample == 1:
            raise KeyError("bug")

    local = LocalRun("a", samples=3)
    local.run(rollout, rank)
    assert seen == [[0, 2]]
    assert set(local.statuses().values()) == {("COMPLETED", True), ("FAILED", True)}


def test_the_scores_of_a_group_scorer_that_sorts_its_list_belong_to_the_sorted_list():
    @group_scorer
    def by_sample(views):
        views.reverse()
        return [view.key.sample for view in views]

    local = LocalRun(samples=3)
    local.run(one_turn, by_sample)
    assert [row["reward"] for row in local.rows()] == [0, 1, 2]


def test_a_group_is_settled_in_one_append():
    together = []

    class Watching(FaultyJournal):
        async def append_together(self, entries, *, settled=None):
            if settled:
                together.append([type(records[-1]) for _, records, _ in entries])
            await super().append_together(entries, settled=settled)

    @group_scorer
    def rank(views):
        return [1.0] * len(views)

    from holdfast.journal.sqlite.journal import MemoryJournal

    local = LocalRun("a", samples=3, journal=Watching(MemoryJournal()))
    local.run(one_turn, rank)
    assert together == [[Scored] * 3]


@pytest.mark.parametrize("returned", [[1.0], 1.0, None, [1.0, "x"], "ab"])
def test_a_group_scorer_that_returns_the_wrong_shape_fails_its_group_only(returned):
    @group_scorer
    def rank(views):
        return returned if views[0].key.task == "a" else [1.0] * len(views)

    local = LocalRun("a", "b", samples=2)
    local.run(one_turn, rank)
    statuses = local.statuses()
    assert {statuses["a/0"], statuses["a/1"]} == {("FAILED", True)}
    assert {statuses["b/0"], statuses["b/1"]} == {("COMPLETED", True)}
    assert len(local.policy.requests) == 4


@pytest.mark.parametrize(
    ("returned", "reward", "metrics", "reasons"),
    [
        (True, 1.0, {}, {}),
        (False, 0.0, {}, {}),
        (3, 3.0, {}, {}),
        (None, None, {}, {}),
        ({"score": 0.5}, 0.5, {}, {}),
        ({"reward": True}, 1.0, {}, {}),
        ({"score": None, "reason": "unclear"}, None, {}, {"reason": "unclear"}),
        ({"score": 1, "is_score_valid": False}, None, {}, {}),
        (
            {"score": 1, "metrics": {"a": 1, "b": {"score": 0.5, "reason": "half"}}},
            1.0,
            {"a": 1.0, "b": 0.5},
            {"b": "half"},
        ),
        ({"score": 1, "reasons": {"why": "so"}}, 1.0, {}, {"why": "so"}),
        (Score(0.25, {"a": 1}), 0.25, {"a": 1.0}, {}),
    ],
)
def test_a_scorer_returns_a_number_a_bool_a_dict_a_score_or_none(
    returned, reward, metrics, reasons
):
    local = LocalRun("a", "b")
    local.run(one_turn, lambda view: returned)
    scored = local.history().scored
    assert (scored.reward, scored.metrics, scored.reasons) == (reward, metrics, reasons)

    @group_scorer
    def rank(views):
        return [returned for _ in views]

    local = LocalRun("a", "b")
    local.run(one_turn, rank)
    assert local.history().scored.reward == reward


def test_what_else_a_dict_has_is_kept_as_details():
    local = LocalRun()
    local.run(one_turn, lambda view: {"score": 1, "answer": [1, 2]})
    assert local.history().scored.details == {"answer": [1, 2]}


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        ("good", "returned 'good'; return a number, a bool, a dict with a 'score', a Score"),
        ({"accuracy": 1}, "returned a dict without a 'score'; it has accuracy"),
        ({}, "returned a dict without a 'score'; it has nothing"),
        ({"score": "high"}, "return a number"),
        ({"score": 1, "metrics": [1]}, "metrics that are not a dict"),
        ({"score": 1, "reasons": "good"}, "reasons that are not a dict"),
        ({"score": 1, "metrics": {"a": "b"}}, "'b' as its metric 'a'"),
        ([1.0], "return a number"),
    ],
)
def test_what_is_no_score_fails_its_trajectory_and_says_so(returned, why):
    local = LocalRun()
    local.run(one_turn, lambda view: returned)
    assert why in local.history().scoring_failures[-1].message


class Judge:
    def rate(self, view, strictness):
        return 1.0


async def streaming(view):
    yield 1.0


def yielding(view):
    yield 1.0


def keyword(*, view):
    return 1.0


@pytest.mark.parametrize(
    ("scorer", "why"),
    [
        (3, "scorer is a function of one argument, not 3"),
        (
            lambda: 1.0,
            r"scorer <lambda>\(\): too many .*; a scorer takes one argument, the finished",
        ),
        (
            lambda trajectory, task: 1.0,
            r"\(trajectory, task\): missing .*its task is trajectory.task",
        ),
        (Judge().rate, r"rate\(view, strictness\): missing a required argument: 'strictness'"),
        (keyword, r"keyword\(view\): "),
        (group_scorer(lambda a, b: [1.0]), "takes one argument, the list of a task's finished"),
        (Judge, "Judge is a class, and no scorer; give an instance"),
        (streaming, "scorer streaming yields; a scorer returns its score"),
        (yielding, "scorer yielding yields"),
        (async_scorer(None), "the scorer was called already: give the function itself, async_sc"),
    ],
)
def test_what_cannot_be_a_scorer_is_refused_before_anything_is_sampled(scorer, why):
    with pytest.raises(UsageError, match=why) as caught:
        Scorer(scorer)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("bad", [{"tries": 0}, {"concurrency": 0}, {"timeout": 0}])
def test_a_scoring_policy_that_could_never_end_is_refused(bad):
    with pytest.raises(UsageError):
        ScoringPolicy(**bad)


def test_the_whole_of_it_from_the_outside(served, tmp_path):
    async def main():
        policy = holdfast.EnginePolicy(served.url, served.model)
        journal = holdfast.open_journal(tmp_path / "journal.db")
        try:
            return await holdfast.run(
                one_turn,
                tasks=[{"id": "a", "prompt": "x"}],
                policy=policy,
                journal=journal,
                name="mine",
                samples=2,
                sampling=holdfast.Sampling(max_tokens=32),
                scorer=async_scorer,
            )
        finally:
            await journal.close()
            await policy.aclose()

    ending, report = asyncio.run(main())
    assert (ending.stopped, report.trajectories, report.unsettled) == ("", 2, 0)


def test_only_a_function_is_marked_as_a_group_scorer() -> None:
    with pytest.raises(UsageError, match="marks a function, not 5"):
        group_scorer(5)  # type: ignore[arg-type]


def test_a_score_that_is_too_large_to_be_recorded_fails_its_own_trajectory(monkeypatch):
    monkeypatch.setattr(codec, "MAX_RECORD", 4096)

    def scorer(view):
        return Score(1.0, reasons={"why": "x" * 4096 if view.key.sample else "short"})

    local = LocalRun("a", samples=2)
    ending = local.run(one_turn, scorer, scoring=ScoringPolicy(tries=2))
    assert (ending.stopped, ending.fatal) == ("", None)
    assert local.statuses() == {"a/0": ("COMPLETED", True), "a/1": ("FAILED", True)}
    assert {each.type for each in local.history("a/1").scoring_failures} == {"RecordTooLarge"}
