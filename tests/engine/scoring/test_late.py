"""Scores that need the whole run, or several: rollouts first, one durable scoring after them."""

import asyncio

import pytest
from msgspec import structs

from holdfast.engine.open_run import open_run
from holdfast.engine.running.engine import Engine
from holdfast.engine.scoring.late import score_late
from holdfast.engine.scoring.scorer import Score, Scorer, group_scorer
from holdfast.engine.settings import ScoringPolicy, Settings
from holdfast.engine.stop import Stop
from holdfast.journal.sqlite.journal import MemoryJournal
from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.records.history import History
from holdfast.records.run import Run
from holdfast.records.trajectory import Status
from holdfast.rollout.processors.processor import as_processor
from support.engine.local_run import LocalRun
from support.rollout.stage import Oracle

SETTINGS = Settings(backoff=0.0, scoring=ScoringPolicy(tries=2, timeout=5.0, concurrency=2))


async def solve(t):
    t.add(*t.task.messages)
    await t.generate()
    if t.task.id == "broken":
        raise ValueError("a bug")


async def rolled_out(local: LocalRun, *, stop: Stop | None = None) -> Run:
    run = await open_run(local.journal, local.spec, local.tasks)
    engine = Engine(
        run=run,
        journal=local.journal,
        policy=local.policy,
        renderer=ByteRenderer(),
        processor=as_processor(solve),
        settles=False,
        settings=SETTINGS,
        stop=stop,
    )
    ending = await engine.work()
    assert ending.fatal is None
    return run


async def histories(local: LocalRun, run: Run) -> dict[str, tuple[bool, History]]:
    return {
        f"{row.key.task}/{row.key.sample}": (row.settled, History(log))
        async for row, log in local.journal.histories(run)
    }


def scorer_of(function) -> Scorer:
    return Scorer(group_scorer(function))


async def score(local: LocalRun, runs: list[Run], scorer: Scorer, *, whole: bool) -> Stop:
    stop = Stop()
    await score_late(local.journal, runs, scorer, whole=whole, settings=SETTINGS, stop=stop)
    return stop


async def test_rollouts_stay_open_until_they_are_scored_and_failures_do_not():
    local = LocalRun("a", "broken", "b", samples=2)
    run = await rolled_out(local)
    before = await histories(local, run)
    assert {name: settled for name, (settled, _) in before.items()} == {
        "a/0": False, "a/1": False, "b/0": False, "b/1": False,
        "broken/0": True, "broken/1": True,
    }  # fmt: skip
    count = len(local.policy.requests)
    seen = []

    def judge(views):
        seen.append([str(view.key) for view in views])
        return [Score(float(place), details={"place": place}) for place in range(len(views))]

    await score(local, [run], scorer_of(judge), whole=True)
    assert seen == [["run/a/0", "run/a/1", "run/b/0", "run/b/1"]]
    after = await histories(local, run)
    assert [after[name][1].reward for name in ("a/0", "a/1", "b/0", "b/1")] == [0, 1, 2, 3]
    assert after["b/1"][1].scored.details == {"place": 3}
    assert after["broken/0"][1].reward is None
    assert all(settled for settled, _ in after.values())
    # A second time, there is nothing to do for either.
    await rolled_out(local)
    await score(local, [run], scorer_of(judge), whole=True)
    assert len(seen) == 1
    assert len(local.policy.requests) == count


async def test_tasks_are_compared_across_runs_in_the_order_of_the_runs():
    journal = MemoryJournal()
    yards = [LocalRun("a", "b", journal=journal, policy=Oracle()) for _ in range(2)]
    yards[1].spec = structs.replace(yards[1].spec, name="other")
    runs = [await rolled_out(local) for local in yards]
    seen = []

    async def judge(views):
        seen.append([str(view.key) for view in views])
        return [1.0, 2.0]

    await score(yards[0], runs, scorer_of(judge), whole=False)
    assert sorted(seen) == [["run/a/0", "other/a/0"], ["run/b/0", "other/b/0"]]
    for local, run, reward in zip(yards, runs, (1.0, 2.0), strict=True):
        results = await histories(local, run)
        assert [history.reward for _, history in results.values()] == [reward, reward]


async def test_a_late_scorer_that_raises_is_asked_again_and_then_fails_its_lot_alone():
    local = LocalRun("a", "b")
    run = await rolled_out(local)
    calls = []

    def judge(views):
        (view,) = views
        calls.append(view.key.task)
        if view.key.task == "a":
            raise RuntimeError("never")
        return [1.0]

    await score(local, [run], scorer_of(judge), whole=False)
    assert sorted(calls) == ["a", "a", "b"]
    stored = await histories(local, run)
    assert stored["a/0"][1].status is Status.FAILED
    assert stored["b/0"][1].reward == 1.0
    assert len(stored["a/0"][1].scoring_failures) == 2


async def test_a_stop_in_the_middle_records_nothing_and_gives_everything_back():
    local = LocalRun("a")
    run = await rolled_out(local)
    stop, began = Stop(), asyncio.Event()

    async def judge(views):
        began.set()
        await asyncio.sleep(3600)

    scoring = asyncio.create_task(
        score_late(
            local.journal, [run], scorer_of(judge), whole=True,
            settings=SETTINGS, stop=stop,
        )
    )  # fmt: skip
    await began.wait()
    stop.request("enough")
    await scoring
    stored = await histories(local, run)
    assert stored["a/0"][0] is False
    assert stored["a/0"][1].scored is None
    await score(local, [run], scorer_of(lambda views: [0.5]), whole=True)
    assert (await histories(local, run))["a/0"][1].reward == 0.5
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_reward_of_none_is_no_score_and_is_settled():
    local = LocalRun("a", "b")

    def judge(view):
        return Score(None if view.key.task == "a" else 1.0, reasons={"why": "so"})

    await local.work(solve, judge)
    run = await local.journal.find_run("run")
    results = await histories(local, run)
    assert all(settled for settled, _ in results.values())
    assert results["a/0"][1].reward is None
    assert results["a/0"][1].scored.reasons == {"why": "so"}
    assert results["a/0"][1].status is Status.COMPLETED
    assert results["b/0"][1].reward == 1.0


@pytest.mark.parametrize(
    "returned",
    ["high", Score("high"), Score(1.0, details={"it": object()}), Score(1.0, details=[1])],
)
async def test_what_cannot_be_recorded_is_the_scorers_error(returned):
    local = LocalRun("a")
    await local.work(solve, lambda view: returned)
    run = await local.journal.find_run("run")
    (_, history) = (await histories(local, run))["a/0"]
    assert history.status is Status.FAILED
    assert history.scoring_failures[0].type in ("NotAScore", "TypeError")
