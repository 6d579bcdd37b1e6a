"""Opening a run that consumers have taken groups of: what they have stays what it was."""

import asyncio
from pathlib import Path

import pytest
from msgspec import structs

import holdfast
from holdfast.engine.export.export import What, rows
from holdfast.engine.open_run import RunChanged, is_training, open_run
from holdfast.engine.report import RunReport, build
from holdfast.testing import FakeEngine

TASKS = [{"id": f"q{number}", "prompt": f"What is {number}?"} for number in range(3)]


async def one_turn(t: holdfast.Rollout) -> None:
    t.add(*t.task.messages)
    await t.generate(max_tokens=4)


def low(trajectory: holdfast.TrajectoryView) -> float:
    return 0.25


def high(trajectory: holdfast.TrajectoryView) -> float:
    return 0.75


@pytest.fixture
def call(tmp_path: Path):
    """The arguments of a run of three groups that is done."""
    with FakeEngine() as engine:
        made = {"tasks": TASKS, "journal": tmp_path / "j.db", "name": "r", "policy": engine.url}
        made |= {"samples": 2, "scorer": low, "seed": 1}
        assert holdfast.run_sync(one_turn, **made).rewards == [0.25] * 6
        yield made


def deliver(call, *, run: str = "r", **options) -> holdfast.Delivery:
    return holdfast.Delivery(call["journal"], run, **{"groups": 1, "consumer": "mine", **options})


def rewards_of(delivery: holdfast.Delivery) -> list[float | None]:
    with delivery:
        return [sample.reward for _, batch in delivery for sample in batch.samples]


@pytest.mark.parametrize("end", ["taken", "committed", "dismissed"])
def test_another_scorer_is_refused_while_a_consumer_has_groups_and_taken_once_they_are_back(
    call, end: str
) -> None:
    with deliver(call) as delivery:
        step, batch = next(iter(delivery))
        if end == "committed":
            delivery.commit(step)
        elif end == "dismissed":
            delivery.dismiss(batch.groups, reason="only looking")
    for accept_changes in (False, True):
        with pytest.raises(RunChanged, match="consumer 'mine' has 1 group with the rewards") as why:
            holdfast.run_sync(one_turn, **{**call, "scorer": high}, accept_changes=accept_changes)
        assert "not even with --accept-changes" in str(why.value)
        assert "consumer='mine', checkpoint=0" in str(why.value)
    with deliver(call, checkpoint=0):
        pass
    again = holdfast.run_sync(one_turn, **{**call, "scorer": high}, accept_changes=True)
    assert again.rewards == [0.75] * 6
    assert rewards_of(deliver(call)) == [0.75] * 6


def test_a_loop_under_the_usual_name_can_give_its_groups_back_too(call) -> None:
    usual = {"consumer": "trainer"}
    with deliver(call, **usual) as delivery:
        next(iter(delivery))
    with pytest.raises(RunChanged, match="consumer 'trainer' has 1 group with the rewards") as why:
        holdfast.run_sync(one_turn, **{**call, "scorer": high}, accept_changes=True)
    assert "Delivery(…, consumer='trainer', checkpoint=0)" in str(why.value)
    with deliver(call, checkpoint=0, **usual):
        pass
    holdfast.run_sync(one_turn, **{**call, "scorer": high}, accept_changes=True)
    assert rewards_of(deliver(call, **usual)) == [0.75] * 6


def test_a_consumer_that_has_nothing_is_in_nobodys_way(call) -> None:
    with deliver(call):
        pass
    holdfast.run_sync(one_turn, **{**call, "scorer": high}, accept_changes=True)
    assert rewards_of(deliver(call)) == [0.75] * 6


def test_a_loop_under_the_usual_name_is_no_training(call) -> None:
    with holdfast.Delivery(call["journal"], "r", groups=2) as delivery:
        step, _ = next(iter(delivery))
        delivery.commit(step)
    again = holdfast.run_sync(
        one_turn, **{**call, "samples": 3}, accept_changes=True, retry_failed=True
    )
    assert again.rewards == [0.25] * 7, "the group that nobody has got one more"

    async def training() -> bool:
        async with holdfast.open_journal(call["journal"]) as journal:
            run = await journal.find_run("r")
            assert run is not None
            return await is_training(journal, run)

    assert not asyncio.run(training())


def test_what_is_scored_anew_has_no_reward_until_it_is(call) -> None:
    async def amend_and_read() -> tuple[RunReport, list[object]]:
        """As a kill leaves it, after the change and before the first new score."""
        async with holdfast.open_journal(call["journal"]) as journal:
            run = await journal.find_run("r")
            assert run is not None
            other = structs.replace(run.spec, scorer="other@1", scorer_code=None)
            tasks = await journal.tasks(run)
            run = await open_run(journal, other, tasks, accept_changes=True)
            exported = [row async for row in rows(journal, run, What.TRAJECTORIES)]
            return await build(journal, run), [(row["reward"], row["metrics"]) for row in exported]

    report, exported = asyncio.run(amend_and_read())
    assert (report.clean.count, report.disturbed.count, report.unsettled) == (0, 0, 6)
    assert exported == [(None, {})] * 6
    with pytest.raises(RunChanged, match="6 trajectories have their rewards from a recorded"):
        holdfast.run_sync(one_turn, **{**call, "scorer": None}, accept_changes=True)
    assert holdfast.run_sync(one_turn, **{**call, "scorer": high}, accept_changes=True).rewards == (
        [0.75] * 6
    )


def test_no_scorer_is_refused_where_one_has_scored(call) -> None:
    more = {**call, "scorer": None, "samples": 3}
    with pytest.raises(RunChanged, match="6 trajectories have their rewards from a recorded"):
        holdfast.run_sync(one_turn, **more, accept_changes=True)
    assert holdfast.run_sync(one_turn, **more, new=True).rewards == [None] * 9


def test_a_scorer_that_is_left_out_is_another_one(call) -> None:
    with deliver(call) as delivery:
        next(iter(delivery))
    with pytest.raises(RunChanged, match="consumer 'mine' has 1 group"):
        holdfast.run_sync(one_turn, **{**call, "scorer": None}, accept_changes=True)


def test_more_tasks_under_the_same_scorer_are_delivered_beside_what_a_consumer_has(call) -> None:
    with deliver(call) as delivery:
        step, first = next(iter(delivery))
        delivery.commit(step)
    more = [*TASKS, {"id": "q3", "prompt": "What is 3?"}]
    asyncio.run(holdfast.run(one_turn, **{**call, "tasks": more}, accept_changes=True))
    with deliver(call) as delivery:
        tasks = [group.task for _, batch in delivery for group in batch.groups]
    assert sorted([first.groups[0].task, *tasks]) == ["q0", "q1", "q2", "q3"]


def right(trajectory: holdfast.TrajectoryView) -> float:
    return float(trajectory.task.ground_truth == "right")


def test_a_corrected_ground_truth_is_scored_anew_and_nothing_is_sampled_for_it(
    call, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{**row, "ground_truth": "wrong"} for row in TASKS]
    call |= {"tasks": rows, "scorer": right, "name": "corrected"}
    assert holdfast.run_sync(one_turn, **call).rewards == [0.0] * 6
    call["tasks"] = [rows[0], {**rows[1], "ground_truth": "right"}, rows[2]]
    line = "another ground_truth of q1: what is finished is scored anew"
    with pytest.raises(RunChanged, match=line):
        holdfast.run_sync(one_turn, **call)
    with FakeEngine() as elsewhere:
        again = holdfast.run_sync(
            one_turn, **{**call, "policy": elsewhere.url}, accept_changes=True
        )
        assert elsewhere.stats().requests == 0
    assert again.rewards == [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]
    assert caplog.messages == [f"run 'corrected': {line}"]
    assert holdfast.run_sync(one_turn, **call).rewards == again.rewards, "it is the recorded one"


def test_a_ground_truth_cannot_be_corrected_where_nothing_gives_the_reward_anew(call) -> None:
    call |= {"scorer": None, "name": "unscored"}
    holdfast.run_sync(one_turn, **call)
    call["tasks"] = [{**TASKS[0], "ground_truth": "0"}, *TASKS[1:]]
    with pytest.raises(RunChanged, match=r"no scorer that would give the rewards anew: give it an"):
        holdfast.run_sync(one_turn, **call, accept_changes=True)


def test_a_ground_truth_cannot_be_corrected_while_a_consumer_has_its_group(call) -> None:
    with deliver(call) as delivery:
        _, batch = next(iter(delivery))
    (mine,) = [row for row in TASKS if row["id"] == batch.groups[0].task]
    others = [row for row in TASKS if row is not mine]
    changed = [{**mine, "ground_truth": "1"} if row is mine else row for row in TASKS]
    with pytest.raises(RunChanged, match=r"consumer 'mine' has 1 group of that: give") as no:
        holdfast.run_sync(one_turn, **{**call, "tasks": changed}, accept_changes=True)
    assert "consumer='mine', checkpoint=0" in str(no.value)
    changed = [{**row, "ground_truth": "1"} if row in others else row for row in TASKS]
    holdfast.run_sync(one_turn, **{**call, "tasks": changed}, accept_changes=True)


def test_samples_and_tasks_that_change_nothing_about_a_consumers_groups_are_said_in_one_line(
    call, caplog: pytest.LogCaptureFixture
) -> None:
    with deliver(call, groups=2) as delivery:
        next(iter(delivery))
    holdfast.run_sync(one_turn, **{**call, "samples": 3}, accept_changes=True)
    assert caplog.messages == ["run 'r': consumer 'mine' has 2 groups, which get no more samples"]
    caplog.clear()
    fewer = {**call, "samples": 3, "tasks": [{"id": "other", "prompt": "?"}]}
    with pytest.raises(RunChanged) as refused:
        holdfast.run_sync(one_turn, **fewer)
    line = "consumer 'mine' has 2 groups of tasks that are removed: they stay in its ledger"
    assert any(line in difference for difference in refused.value.differences)
    assert caplog.messages == []
    holdfast.run_sync(one_turn, **fewer, accept_changes=True)
    assert caplog.messages == [f"run 'r': {line}"]


def test_failures_in_a_consumers_groups_are_retried_once_these_are_given_back(
    call, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.touch()

    async def may_fail(t: holdfast.Rollout) -> None:
        await one_turn(t)
        if broken.exists() and t.key.sample == 1:
            raise ValueError("broken")

    call["name"] = "f"
    assert "try again with --retry-failed" in str(holdfast.run_sync(may_fail, **call))
    with deliver(call, run="f") as delivery:
        next(iter(delivery))
    broken.unlink()
    again = holdfast.run_sync(may_fail, **call, retry_failed=True)
    assert again.report.held_failures == {"mine": 1}
    assert "1 failed for good; consumer 'mine' has 1 of them in its groups" in str(again)
    assert "consumer='mine', checkpoint=0" in str(again)
    with deliver(call, run="f", checkpoint=0):
        pass
    assert holdfast.run_sync(may_fail, **call, retry_failed=True).rewards == [0.25] * 6
